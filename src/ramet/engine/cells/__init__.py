"""A cell's way through a sandbox: queue, turns, REPL, interrupts, endings. Start at ``sandbox``."""
