"""Each operation of a sandbox, as a generator that says what to send and receives the answers. No I/O happens here.

A function here checks its arguments at once, then returns the generator, which a driver (``client/drivers``) runs;
``steps`` lists what a generator may yield. Start with ``steps``, then ``cells``.
"""
