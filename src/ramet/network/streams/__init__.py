"""Connections as coroutines see them: bytes with backpressure both ways, TLS over them, and bulk from one to another.

Knows nothing of rules or secrets. Start with ``stream``.
"""
