"""Sandboxes that requests find again by an id: kept, frozen, forked, described.

Start with ``registry.py``.
"""
