"""Sandboxes that sleep on disk, and sandboxes that survive their engine.

May import everything of the engine but ``calls``. Start at `hibernation.py`.
"""
