"""The server: many users, over HTTP, in front of one engine.

It may import everything below the command line except the client; nothing imports it but the command line. Start
reading in ``worker`` (the process), ``app`` (a request's way) and ``calling`` (the call that the SDK makes).
"""
