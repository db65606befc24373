"""The SDK: ``Sandbox`` and ``AsyncSandbox``, two thin faces of one implementation. May import ``transport`` and below.

``asynchronous`` is written by hand, ``blocking`` is generated from it. Both faces use ``operations``, which say without
any I/O what to send and what the answers mean, and ``drivers``, which carry the operations out. Start with
``asynchronous/sandbox.py``, then ``operations/cells.py`` and ``drivers/asynchronous.py``.
"""
