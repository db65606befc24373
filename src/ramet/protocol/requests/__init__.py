"""What may be asked for, each option described once: type, bounds, help, name over HTTP, flag. No I/O.

Start at ``options``.
"""
