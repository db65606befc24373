"""System calls that a task is to make by itself: decided on here, carried out by the C extension in one go."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Iterable
from typing import NamedTuple

from ramet.isolation.syscall_numbers import X86_64

AT_FDCWD = -100
# The lines of a REPL to the engine; ramet_guest and native/thaw.c know these numbers too.
CONTROL, SPARE_STDOUT, SPARE_STDERR = 1000, 1001, 1002
ResourceLimit = tuple[int, int, int]  # resource, soft, hard


class Call(NamedTuple):
    """One call. Bytes among its arguments are laid out in the task's memory, and it is given where they are."""

    name: str  # for error messages
    number: int
    arguments: tuple[int | bytes, ...]
    must_work: bool = True


def call(name: str, function: str, *arguments: int | bytes, must_work: bool = True) -> Call:
    return Call(name, X86_64[function], arguments, must_work)


def standard_lines() -> list[Call]:
    """0, 1 and 2 of a REPL that has done nothing with them."""
    return [
        call("open /dev/null", "openat", AT_FDCWD, b"/dev/null", os.O_RDWR, 0),
        call("place stdout", "dup3", SPARE_STDOUT, 1, 0),
        call("place stderr", "dup3", SPARE_STDERR, 2, 0),
    ]


def set_limits(limits: Iterable[ResourceLimit]) -> list[Call]:
    return [
        call(f"set resource limit {kind}", "prlimit64", 0, kind, _pair(soft) + _pair(hard), 0)
        for kind, soft, hard in limits
    ]


def widest_table() -> list[Call]:
    """While descriptors are made, as many numbers as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return set_limits([(resource.RLIMIT_NOFILE, most, most)])


def _pair(value: int) -> bytes:
    return struct.pack("<Q", (1 << 64) - 1 if value == resource.RLIM_INFINITY else value)
