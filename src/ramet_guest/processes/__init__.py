"""Output, child processes and scripts: what a cell starts, and what it prints. Start at ``output``."""
