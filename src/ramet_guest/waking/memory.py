"""Prepares the template's memory for the freeze, so that thawed copies write to as few of its pages as possible.

A copy-on-write page is copied when a reference count in it changes. So the template's objects are made immortal (PEP
683), and its garbage collector lists are frozen.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import sysconfig
import types
from typing import Any

from ramet_guest.processes.nameless import nameless_file

# CPython 3.12 and 3.13 (64-bit) treat an object as immortal if the low 32 bits of its reference count are all ones, and
# then neither raise nor lower the count.
_IMMORTAL = 0xFFFFFFFF
_KEPT_FOR_EVER = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.ModuleType,
    type,
    str,
    tuple,
)

# Never released, see fill_holes.
_stuffing: list[object] = []


def settle(everything: bool) -> None:
    """Prepares all objects.

    `everything`: the template holds no user data, so all objects become immortal. Otherwise only those do that live as
    long as their modules.
    """
    gc.collect()
    if can_make_immortal():
        make_immortal(everything)
    gc.collect()
    _stuffing.extend(fill_holes())
    gc.freeze()


def can_make_immortal() -> bool:
    """Whether this version of CPython has the layout we know. Tries it on one object."""
    if sys.version_info[:2] not in ((3, 12), (3, 13)) or sys.implementation.name != "cpython":
        return False
    if sys.maxsize < 2**32 or hasattr(sys, "gettotalrefcount") or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    probe = ["probe"]
    count = ctypes.c_uint32.from_address(id(probe))
    if count.value != sys.getrefcount(probe) - 1:
        return False
    count.value = _IMMORTAL
    more = [probe] * 1000
    steady = count.value == _IMMORTAL
    del more
    return steady and count.value == _IMMORTAL


def make_immortal(everything: bool) -> None:
    """Walks everything that the garbage collector can reach, and makes it immortal."""
    seen: set[int] = set()
    waiting: list[Any] = gc.get_objects()
    # Our own containers grow during the walk; immortal, they would never be freed.
    ours = {id(seen), id(waiting), id(sys._getframe())}
    count_at = ctypes.c_uint32.from_address
    referents = gc.get_referents
    while waiting:
        fresh = []
        for thing in waiting:
            key = id(thing)
            if key in seen or key in ours:
                continue
            seen.add(key)
            fresh.append(thing)
            if everything or isinstance(thing, _KEPT_FOR_EVER):
                count_at(key).value = _IMMORTAL
        waiting = [] if not fresh else referents(*fresh) if len(fresh) < 100_000 else in_parts(fresh)
        ours = ours | {id(waiting), id(fresh)}


def in_parts(things: list[Any]) -> list[Any]:
    """Returns the referents of a long list, in parts: a call with a million arguments would overflow the stack."""
    found: list[Any] = []
    for start in range(0, len(things), 10_000):
        found.extend(gc.get_referents(*things[start : start + 10_000]))
    return found


def fill_holes() -> list[object]:
    """Fills the free blocks among the template's objects, so that copies put new objects together on fresh pages.

    A new object in a free block costs a copied page; objects on pages of their own share a few empty ones.
    """
    stuffing: list[object] = []
    for size, count in free_blocks():
        if size <= 16:
            stuffing += [object() for _ in range(count)]
        elif size <= 32:
            stuffing += [float(number) for number in range(count)]
        else:
            filler = size - sys.getsizeof(b"")
            stuffing += [bytes(filler) for _ in range(count)]
    return stuffing


def free_blocks() -> list[tuple[int, int]]:
    """Returns the block sizes of CPython's allocator and how many blocks of each are free, from its debugging table."""
    descriptor = nameless_file("blocks")
    stderr = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        sys._debugmallocstats()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    with os.fdopen(descriptor, "r") as table:
        table.seek(0)
        rows = re.findall(r"^ *\d+ +(\d+) +\d+ +\d+ +(\d+)$", table.read(), re.MULTILINE)
    return [(int(size), int(count)) for size, count in rows]
