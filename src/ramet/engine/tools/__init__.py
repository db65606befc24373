"""Passes tool calls from code in a sandbox to the client of its cell, and the answers back.

Trusts no byte from a sandbox. Start with ``service.py``.
"""
