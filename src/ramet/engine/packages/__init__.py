"""Packages for sandboxes: installed once, by the engine, and given to every sandbox that asks for the same.

Start with `service.py` (what a sandbox asks), then `packages.py` (who makes it, and that it is made once).
"""
