"""The guest: Ramet's code inside the wall. It runs cells in one long-lived process, answers on descriptor 1000,
imports nothing of `ramet` and starts no threads.

Start reading at `boot.py`, then `repl.py`.
"""
