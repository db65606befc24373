"""Connections for coroutines: bytes with backpressure in both directions, TLS on top, and bulk transfer between two.

Knows nothing of rules or secrets. Start with ``stream``.
"""
