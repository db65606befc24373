"""How a sandbox reaches the outside: the proxy, a process of its own beside the engine, and the engine's side of it.

Its folders follow the way of a request: ``listeners``, ``http``, ``connecting``, over ``streams``, with ``secrets``.
May import ``isolation`` and what is below. Start reading at ``connecting.decisions``, which decides about connections.
"""
