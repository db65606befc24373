"""The HTTP server: many users in front of one engine.

It may import everything below the command line except the client; only the command line imports it. Start reading at
``processes.worker`` (the process), then ``requests.application`` (how a request is routed) and ``routes.call`` (the
call that the SDK makes).
"""
