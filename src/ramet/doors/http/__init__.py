"""The HTTP server: many users in front of one engine.

It may import everything below the command line except the client; only the command line imports it. Start reading in
``worker`` (the process), ``app`` (how a request is routed) and ``calling`` (the call that the SDK makes).
"""
