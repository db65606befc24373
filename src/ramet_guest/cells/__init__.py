"""Running cells: compiling, interrupts, the cells' event loop, tracebacks, history, magics. Start at ``compiling``."""
