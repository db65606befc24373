"""System calls that a task makes by itself: Python decides on the list, and the C extension runs it in one go.

A list holds no decisions: nobody looks at a result before the next call. So each call either must work, and else the
freeze or thaw fails with its name, or may fail and leaves the task in an acceptable state. The reason for each call
stands beside the line that adds it.
"""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Iterable
from typing import NamedTuple

from ramet.isolation.kernel.syscall_numbers import X86_64
from ramet_guest import wire

AT_FDCWD = -100
# The REPL's descriptors to the engine.
CONTROL, SPARE_STDOUT, SPARE_STDERR = wire.REPL_CONTROL, wire.REPL_STDOUT, wire.REPL_STDERR
ResourceLimit = tuple[int, int, int]  # resource, soft, hard


class InjectedCall(NamedTuple):
    """One call. The C extension copies bytes among its arguments into the task's memory and passes their address."""

    name: str  # for error messages
    number: int
    arguments: tuple[int | bytes, ...]
    must_work: bool = True
    whole: bool = False  # its result must be its third argument: a short write is no error of the kernel's


def call(
    name: str, function: str, *arguments: int | bytes, must_work: bool = True, whole: bool = False
) -> InjectedCall:
    return InjectedCall(name, X86_64[function], arguments, must_work, whole)


def standard_lines() -> list[InjectedCall]:
    """Descriptors 0, 1 and 2 of a REPL that has not changed them."""
    return [
        # The table is empty but for the three lines to the engine, so this becomes 0: input that is at its end.
        call("open /dev/null", "openat", AT_FDCWD, b"/dev/null", os.O_RDWR, 0),
        # Not close-on-exec: programs that cells start write there.
        call("place stdout", "dup3", SPARE_STDOUT, 1, 0),
        call("place stderr", "dup3", SPARE_STDERR, 2, 0),
    ]


def set_limits(limits: Iterable[ResourceLimit]) -> list[InjectedCall]:
    """Resource limits of the calling task. It still holds the pod's capabilities, so that it may raise them."""
    return [
        call(f"set resource limit {kind}", "prlimit64", 0, kind, _pair(soft) + _pair(hard), 0)
        for kind, soft, hard in limits
    ]


def lowered_limits(wanted: Iterable[ResourceLimit], usual: Iterable[ResourceLimit]) -> list[InjectedCall]:
    """Resource limits of a task without capabilities: none of them above the usual ones."""
    asked = {kind: (soft % (1 << 64), hard % (1 << 64)) for kind, soft, hard in wanted}  # -1 is infinity
    known = {kind: (soft, hard) for kind, soft, hard in usual}
    # The widest table, above, is narrowed again in any case.
    chosen = [
        (kind, min(asked.get(kind, usual_pair)[0], hard), hard)
        for kind, usual_pair in known.items()
        for hard in (min(asked.get(kind, usual_pair)[1], usual_pair[1]),)
    ]
    # Those that no sandbox is given a limit for: the kernel refuses to raise them, and they stay as they were.
    others = set_limits((kind, *pair) for kind, pair in asked.items() if kind not in known)
    return [*set_limits(chosen), *(each._replace(must_work=False) for each in others)]


def widest_table() -> list[InjectedCall]:
    """Allow the highest descriptor number that the engine may use; the sandbox's own limit follows afterwards."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return set_limits([(resource.RLIMIT_NOFILE, most, most)])


def _pair(value: int) -> bytes:
    return struct.pack("<Q", (1 << 64) - 1 if value == resource.RLIM_INFINITY else value)
