"""How the SDK reaches an engine. ``seam`` defines the interface, with two implementations.

``embedded`` is an engine that is a child of this process; ``http`` is one behind a server. ``resolving`` turns a user's
request into a specification for the engine, on the machine where the engine runs. May import ``engine`` and the layers
below it, though it needs only ``protocol`` and ``isolation``. Start reading at ``seam``.
"""
