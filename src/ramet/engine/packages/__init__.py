"""Packages for sandboxes: the engine installs a set once and gives it to every sandbox that asks for the same.

Start with `service.py` (the requests of a sandbox), then `packages.py` (the store, and one installation for all).
"""
