"""The processes of a server: supervisor, worker, introducer, keeper. Start at ``supervisor``."""
