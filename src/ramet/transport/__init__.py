"""How the SDK reaches an engine: ``seam`` says what it needs, and two packages of modules give it.

``embedded``: an engine that is a child of this process. ``http``: one behind a server. ``resolving`` turns what a user
asked for into what an engine is told, on the machine where the engine is. May import ``engine`` and what is below it,
though it needs ``protocol`` and ``isolation`` only. Start reading at ``seam``.
"""
