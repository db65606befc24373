"""Ways in which a cell ends its REPL: code, exit code, cause."""

DEATHS = [
    ("import os; print('last words', flush=True); os._exit(3)", 3, "exit"),
    ("import os; print('last words', flush=True); os._exit(0)", 0, "exit"),
    ("import os; print('last words', flush=True); os.kill(os.getpid(), 9)", 137, "signal 9"),
    ("import ctypes; print('last words', flush=True); ctypes.string_at(0)", 139, "signal 11"),
    ("import os; print('last words', flush=True); os.abort()", 134, "signal 6"),
    ("import os; print('last words', flush=True); os.kill(os.getpid(), 15)", 143, "signal 15"),
    ("import os; print('last words', flush=True); os.execv('/bin/true', ['true'])", 0, "exit"),
]
