"""The wire format: frames, and the frozen values inside them.

Pure functions and values, no I/O; imports only ``ramet.errors``. Start reading at ``frames``.
"""
