"""The asynchronous face: AsyncSandbox and what it gives, written by hand.

``tools/generate-sync`` makes ``client/blocking`` from these modules. What the faces do differently is in
``client/drivers``. Start with ``sandbox``.
"""
