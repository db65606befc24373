"""Commands that make a sandbox for themselves: `ramet run`, `ramet shell`. Start at ``run``."""
