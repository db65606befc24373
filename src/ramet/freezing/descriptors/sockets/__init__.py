"""Sockets of a paused process: how they are read, and made again in a copy. Start at ``sockets``."""
