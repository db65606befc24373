"""Baseline: `os.fork()` of a plain process until the child answers over a pipe.

The process either has the modules of a template, or holds what a piece of Python source makes. As a program (`python
-m bench.plain_fork MODULE...` or `python -m bench.plain_fork --holding SOURCE`) it is that process.
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


def plain_fork_holding(heap: str) -> AbstractContextManager[Sample]:
    """The process to be forked runs `heap`, Python source, and keeps what that makes."""
    return sampling_process("bench.plain_fork", "--holding", heap)


def _serve(arguments: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    held: dict[str, object] = {}
    if arguments[:1] == ["--holding"]:
        exec(arguments[1], held)
    else:
        _import_all(arguments)
    for _ in sys.stdin:
        print(_fork_once(), flush=True)


def _import_all(modules: Sequence[str]) -> None:
    for name in modules:
        # Some names in sys.modules are no files that could be imported again (six.moves, the guest itself).
        with contextlib.suppress(Exception):
            importlib.import_module(name)


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
