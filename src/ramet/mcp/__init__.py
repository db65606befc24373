"""Sandboxes for programs that speak the Model Context Protocol, over stdio and streamable HTTP.

Uses the public package ``ramet``, what ``ramet.integrations`` says to models, and the official SDK, package ``mcp``.
Start reading at ``server``; ``sessions`` is what a client has, ``keeping`` whose it is, ``tools`` what it can do.
"""
