"""Sandboxes that requests come back to by an id: kept, frozen, forked, described.

Start with ``registry.py``.
"""
