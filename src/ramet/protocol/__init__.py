"""What travels: frames, and the frozen values inside them.

Pure functions and values, no I/O; imports ``ramet.errors`` only. Start reading at ``frames``.
"""
