"""Parts that every door served over HTTP shares: the uvicorn lifecycle, connection limits, logs, metrics, storage.

It knows no route, no sandbox and no door: it may import ``protocol``, ``isolation`` and ``errors`` only. Start reading
in ``lifecycle`` (how a door runs uvicorn) and ``connection_limits`` (what a client may do to a connection).
"""
