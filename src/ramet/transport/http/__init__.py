"""Calls over HTTP to a server that has an engine: each is one ``POST /v1/call``, frames in, frames out.

``call`` says what is sent, what is made of the answers and what may be sent again, without any I/O; ``blocking`` and
``asynchronous`` carry it out on sockets. ``remote`` is the engine that the SDK sees. Start reading at ``call``.
Imported only when a URL is given: who uses an engine of the own process pays nothing.
"""
