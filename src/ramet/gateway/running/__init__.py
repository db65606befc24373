"""One call of a server tool in a container: carried out, stopped at calls of the client's tools, told.

Start with ``cell_run.py``.
"""
