"""Sandboxes on disk: snapshots that are saved by name. Start at `saved.py`."""
