"""Snapshots on disk, for what the engine keeps there: saved ones, points, last states of persistent sandboxes, files.

Writing and reading an image is the work of ``ramet.freezing.images``. Start at `saved.py`.
"""
