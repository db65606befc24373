"""Tool calls on their way from the code in a sandbox to the client of its cell, and the answers back.

Trusts nothing that comes from a sandbox. Start with ``service.py``.
"""
