"""Files of clients, and files that code makes: the store and the Files API.

Start with ``store.py``.
"""
