"""The engine keeps sandboxes alive: registry, queues, deadlines, output, files, lifetimes.

A process of its own, also when embedded. May import ``freezing`` (in ``__main__`` only) and what is below it.
Start reading at ``serving``, then ``calls.connection``, ``cells.sandbox``, ``cells.repl``.
"""
