"""How sandboxes begin, and go on as others: create, fork, snapshot, thaw, restore, recover, merge, diff.

May import the sandbox and the registry of ``engine`` and the seams to the layers below; calls of clients use it.
Start reading at ``bring_up.py``; then ``create.py`` and ``fork.py``.
"""
