"""Before the freeze: has thawed copies write to as few pages of the template as possible.

A copy-on-write page is copied when a reference count in it changes, so the template's objects are made immortal
(PEP 683), and its garbage collector lists are set aside.
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

from ramet_guest.nameless import nameless_file

# Objects whose low 32 bits of the reference count are all ones are immortal in CPython 3.12 and 3.13 (64-bit): counts
# are neither raised nor lowered any more.
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

# Kept for ever, see fill_holes.
_stuffing: list[object] = []


def settle(everything: bool) -> None:
    """`everything`: the template holds no user data. Else only what lives as long as its modules is made immortal."""
    gc.collect()
    if can_make_immortal():
        make_immortal(everything)
    gc.collect()
    _stuffing.extend(fill_holes())
    gc.freeze()


def can_make_immortal() -> bool:
    """Knows the layout by version and tries it on one object."""
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
    seen: set[int] = set()
    waiting: list[Any] = gc.get_objects()
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
    """The referents of a long list, by parts: a call with a million arguments would overflow the stack."""
    found: list[Any] = []
    for start in range(0, len(things), 10_000):
        found.extend(gc.get_referents(*things[start : start + 10_000]))
    return found


def fill_holes() -> list[object]:
    """Fills the free blocks among the template's objects, so that copies put new objects together in fresh pages.

    A new object in a hole costs a copied page; objects side by side in pages of their own share a few empty ones.
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
    """Block sizes of CPython's allocator and how many of each are free, from the table it prints for debugging."""
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
