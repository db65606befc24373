"""Sandboxes for programs that speak the Model Context Protocol, over stdio and streamable HTTP.

Uses the public package ``ramet``, the texts for models in ``ramet.integrations``, and the official SDK ``mcp``.
Start reading at ``server``; ``sessions`` holds the sandboxes of a client, ``session_store`` finds the session of a
request, ``tools`` lists what a client can call.
"""
