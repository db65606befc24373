"""One call of a server tool in a container: runs it, pauses it at calls of the client's tools, reports its outcome.

Start with ``cell_run.py``.
"""
