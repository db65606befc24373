"""From a name and a port to a connection: whether rules allow it, which address it uses, and what may end it later.

Start with ``targets``.
"""
