"""The file tree of a pod: read-only skeleton, writable layers, shown host folders, copies and comparisons.

Start at ``skeleton``.
"""
