"""The SDK: ``Sandbox`` and ``AsyncSandbox``, two thin faces of one implementation.

``operations`` says what is sent and what is made of the answers, without any I/O; ``blocking`` and ``asynchronous``
carry it out. May import ``transport`` and what is below it. Start reading at ``sandbox``, then ``operations``.
"""
