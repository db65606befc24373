"""The engine's side of sandbox networks: rules, secrets and log of each sandbox id, and the sockets of each body.

May import ``ramet.network`` and the layers below it. Start reading at ``network``, then ``proxy``; ``calls`` serves the
requests of clients.
"""
