"""How the SDK reaches an engine. Today: ``embedded``, an engine that is a child of this process.

May import ``engine`` and what is below it, though it needs ``protocol`` only. Start reading at ``embedded``.
"""
