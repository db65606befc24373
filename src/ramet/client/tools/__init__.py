"""Tools on the side of the program that owns them: what they are, their schemas, and answering their calls.

Used by the two faces of a sandbox. Start with ``tool.py``, then ``answering.py``.
"""
