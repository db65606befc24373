"""Baseline: `os.fork()` of a plain process that has the template's modules, until the child answers over a pipe.

As a program (`python -m bench.plain_fork MODULE...`) it is that process.
"""

import contextlib
import importlib
import os
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager

from bench.measure import Sample
from bench.process import sampling_process


def plain_fork(modules: Sequence[str]) -> AbstractContextManager[Sample]:
    """`modules` are the names in `sys.modules` of a sandbox: the process to be forked imports all it can of them."""
    return sampling_process("bench.plain_fork", *modules)


def _serve(modules: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    for name in modules:
        # Some names in sys.modules are no files that could be imported again (six.moves, the guest itself).
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for _ in sys.stdin:
        print(_fork_once(), flush=True)


def _fork_once() -> float:
    reader, writer = os.pipe()
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"x")
        os._exit(0)
    os.read(reader, 1)
    taken = time.perf_counter() - started
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
    return taken


if __name__ == "__main__":
    _serve(sys.argv[1:])
