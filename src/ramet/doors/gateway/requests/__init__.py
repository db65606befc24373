"""Parses a request for an answer: its tools and its history, and refuses what is not valid. No I/O.

Start with ``request.py``.
"""
