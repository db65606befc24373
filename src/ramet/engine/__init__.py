"""The engine keeps sandboxes alive: registry, queues, deadlines, output, files, lifetimes.

A process of its own, also when embedded. May import ``freezing`` and what is below it (in ``__main__`` only).
Start reading at ``serving``, then ``connection``, ``sandbox``, ``repl``.
"""
