"""Images that move: one as a single file, and one from elsewhere, which is treated as hostile.

Imports what the images of this machine do. Start at `packing.py` and `unpacking.py`.
"""
