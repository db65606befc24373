"""The calls of clients: one connection serves one call at a time, and each kind of call has a file.

May import everything of ``engine``; nothing but ``serving`` imports it.
Start reading at ``connection.py``.
"""
