"""Commands that start a server or manage its keys: `ramet serve`, `gateway`, `mcp`, `keys`. Start at ``serve``."""
