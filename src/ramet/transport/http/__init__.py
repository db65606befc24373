"""Calls over HTTP to a server that has an engine: each call is one ``POST /v1/call``, frames in, frames out.

``call`` decides, without I/O, what to send, how to read answers and what to retry; ``blocking`` and ``asynchronous``
carry it out on sockets. ``remote`` is the engine that the SDK sees. Start reading at ``call``.
Imported only when a URL is given, so that programs with an embedded engine do not pay for it.
"""
