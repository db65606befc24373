"""Freeze and thaw: templates, and sandboxes made from them.

Imports ``ramet.isolation`` and what is below it. Start at ``machine``; ``native/`` is the C extension with the ptrace
sequences.
"""
