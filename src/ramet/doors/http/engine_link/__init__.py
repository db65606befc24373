"""How the worker reaches the engine: connections, relayed frames, events of sandboxes. Start at ``link``."""
