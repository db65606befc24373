"""How others come in: over HTTP (``http``), in the words of the Messages API (``gateway``), over MCP (``mcp``).

A door never imports another door; what they share is in ``ramet.web``.
"""
