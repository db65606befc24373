"""The past of sandboxes: which states are kept, when they are taken, and the ways back to them.

May import the sandbox, ``making`` and the seams to the layers below; calls of clients and the registry use it.
Start reading at ``past.py``; then ``point_taker.py`` and ``undo.py``.
"""
