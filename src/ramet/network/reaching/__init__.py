"""From a name and a port to a connection: whether rules allow it, which address it is, and what may still end it.

Start with ``targets``.
"""
