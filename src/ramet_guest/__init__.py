"""The guest: Ramet's code inside the walls. It runs cells in one long-lived process and answers on descriptor 1000.

It imports nothing of `ramet`. It starts a thread only to feed a script's standard input, and to fail the jobs of a pool
that lost its workers in a fork. Start reading at `boot.py`, then `repl.py`.
"""
