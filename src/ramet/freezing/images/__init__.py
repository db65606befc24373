"""Images: snapshots on disk. One is written from a frozen shadow, and poured into an empty process by any later engine.

Start at `templates.py`, which is what the machine uses.
"""
