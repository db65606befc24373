"""Pods: the walls of a sandbox, and what this machine can build.

Imports ``ramet.protocol`` and ``ramet.errors`` only. Start at ``pods``; ``native/`` is the C program that makes them.
"""
