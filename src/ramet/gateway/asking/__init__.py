"""What a request for an answer says: its tools, its history, and what is refused.

Reads and checks; talks to nobody. Start with ``requests.py``.
"""
