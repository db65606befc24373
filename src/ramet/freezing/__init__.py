"""Freeze and thaw: templates, and sandboxes made from them.

Imports ``ramet.isolation`` and what is below it. Start at ``machine``; ``native/`` is the C extension that does the ptrace sequences.
"""
