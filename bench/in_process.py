"""Baseline: IPython's `run_cell` in the process itself, plus one round trip over a socketpair to another process.

That is the least a REPL in another process can cost when it runs cells with stock IPython. As a program
(`python -m bench.in_process`) it is the process that has the shell.
"""

import io
import os
import socket
import sys
from contextlib import AbstractContextManager
from typing import Any

from bench.measure import CELLS_IN_A_BURST, Sample, per_cell_in_a_burst
from bench.process import sampling_process


def in_process() -> AbstractContextManager[Sample]:
    return sampling_process("bench.in_process")


def _serve() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    answers = sys.stdout
    near, far = socket.socketpair()
    if os.fork() == 0:
        near.close()
        while data := far.recv(64):
            far.send(data)
        os._exit(0)
    far.close()

    shell: Any = InteractiveShell.instance()
    shell.history_manager.enabled = False

    def run_one() -> None:
        near.send(b"print(6*7)")
        near.recv(64)
        shell.run_cell("print(6*7)")

    for _ in sys.stdin:
        # A buffer takes the place of a terminal: this baseline pays nothing for its output.
        sys.stdout = io.StringIO()
        taken = per_cell_in_a_burst(run_one)
        printed = sys.stdout.getvalue()
        sys.stdout = answers
        assert printed == "42\n" * CELLS_IN_A_BURST, printed
        print(taken, flush=True)


if __name__ == "__main__":
    _serve()
