"""System calls that Python has no function for, each with its error raised as OSError."""

from __future__ import annotations

import ctypes
import errno
import os

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_OPEN_TREE = 428
_OPEN_TREE_CLONE = 1
_AT_RECURSIVE = 0x8000
_OPENAT2 = 437
_NO_OTHER_MOUNT, _NO_MAGIC_LINKS, _NO_LINKS, _BENEATH, _IN_ROOT = 0x01, 0x02, 0x04, 0x08, 0x10
_TRIES = 32  # openat2 asks to try again when a rename raced with it; a sandbox can race on purpose


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


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


def open_in_root(root: int, path: str, flags: int) -> int:
    """Open a path as if `root` were "/", following no link at all."""
    return _openat2(root, path, flags, _IN_ROOT | _NO_LINKS | _NO_MAGIC_LINKS)


def open_below(folder: int, name: str, flags: int) -> int:
    """Open what is below a folder on the same mount (else EXDEV); a link only with O_PATH and O_NOFOLLOW."""
    return _openat2(folder, name, flags, _BENEATH | _NO_LINKS | _NO_MAGIC_LINKS | _NO_OTHER_MOUNT)


def _openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    name = ctypes.c_char_p(os.fsencode(path))
    for attempt in range(_TRIES):
        try:
            return _call("openat2", _OPENAT2, ctypes.c_int(folder), name, ctypes.byref(how), ctypes.c_size_t(24))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _TRIES - 1:
                raise
    raise AssertionError
