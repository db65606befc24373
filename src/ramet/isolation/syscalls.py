"""System calls that Python has no function for, each with its error raised as OSError."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_OPEN_TREE = 428
_OPEN_TREE_CLONE = 1
_AT_RECURSIVE = 0x8000


def _call(what: str, number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        reason = ctypes.get_errno()
        raise OSError(reason, f"{what}: {os.strerror(reason)}")
    return result


def clone_tree(path: str) -> int:
    """A detached copy of the mounts at and below `path`, as a descriptor."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return _call(
        f"open_tree({path})",
        _OPEN_TREE,
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_uint(flags),
    )
