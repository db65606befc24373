"""The network of sandboxes as the engine keeps it: rules, secrets and log of each id, and the sockets of each body.

May import ``ramet.network`` and what is below it. Start reading at ``network``, then ``proxy``; what
clients ask for is in ``calls``.
"""
