"""System calls that Python has no functions for. Each raises OSError on failure."""

from __future__ import annotations

import ctypes
import errno
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_AT_FDCWD = -100
_OPEN_TREE = 428
_OPEN_TREE_CLONE = 1
_AT_RECURSIVE = 0x8000
_FSCONFIG, _FSPICK = 431, 433
_FSPICK_EMPTY_PATH, _FSPICK_CLOEXEC = 8, 1
_SET_FLAG, _RECONFIGURE = 0, 7  # FSCONFIG_SET_FLAG, FSCONFIG_CMD_RECONFIGURE
_OPENAT2 = 437
_CLONE3 = 435
# RESOLVE_NO_XDEV and the others of openat2(2)
_NO_OTHER_MOUNT, _NO_MAGIC_LINKS, _NO_LINKS, _BENEATH, _IN_ROOT = 0x01, 0x02, 0x04, 0x08, 0x10
# openat2(2) fails with EAGAIN when a rename or mount races with "..", and should then be retried. A sandbox can cause
# such races on purpose, so the retries are limited.
_TRIES = 32


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class _StatFs(ctypes.Structure):
    # We need the first field only. The rest is room for the kernel, which writes 120 bytes on 64-bit machines.
    _fields_ = [("type", ctypes.c_long), ("rest", ctypes.c_char * 248)]


def _call(what: str, number: int, *arguments: object) -> int:
    return _checked(what, _libc.syscall(ctypes.c_long(number), *arguments))


def _checked(what: str, result: int) -> int:
    if result < 0:
        reason = ctypes.get_errno()
        raise OSError(reason, f"{what}: {os.strerror(reason)}")
    return result


def check_clone3() -> None:
    """Raise OSError where a filter refuses clone3 other than with ENOSYS: the C library could start no thread."""
    try:
        _call("clone3", _CLONE3, ctypes.c_void_p(None), ctypes.c_size_t(0))
    except OSError as error:
        if error.errno != errno.EINVAL:  # the kernel's own answer to a structure of size zero
            raise


def clone_tree(path: str) -> int:
    """Clone the mounts at and below `path`, detached, as a descriptor."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return _call(
        f"open_tree({path})",
        _OPEN_TREE,
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_uint(flags),
    )


def forget_names(mount: int) -> None:
    """Make the kernel drop the cached names of a read-only file system, except those in use.

    A remount that changes nothing does this: reconfigure_super in fs/super.c shrinks the dentry cache first. `mount`: a
    descriptor of a mount's top folder.
    """
    flags = ctypes.c_uint(_FSPICK_EMPTY_PATH | _FSPICK_CLOEXEC)
    context = _call("fspick", _FSPICK, ctypes.c_int(mount), ctypes.c_char_p(b""), flags)
    try:
        nothing, zero = ctypes.c_char_p(None), ctypes.c_int(0)
        for command, key in ((_SET_FLAG, ctypes.c_char_p(b"ro")), (_RECONFIGURE, nothing)):
            _call("fsconfig", _FSCONFIG, ctypes.c_int(context), ctypes.c_uint(command), key, nothing, zero)
    finally:
        os.close(context)


def open_in_root(root: int, path: str | bytes, flags: int, mode: int = 0, *, follow_links: bool = True) -> int:
    """Open a path as if `root` were "/". Neither links, nor "..", nor magic links in /proc can lead out of it."""
    return _openat2(root, path, flags, mode, _IN_ROOT | _NO_MAGIC_LINKS | (0 if follow_links else _NO_LINKS))


def find_in_root(root: int, path: str | bytes) -> int:
    """Open what is at `path` as seen from `root`, as an O_PATH descriptor. A final link is not followed."""
    return open_in_root(root, path, os.O_PATH | os.O_NOFOLLOW)


def open_below(folder: int, name: str, flags: int) -> int:
    """Open a path below a folder, on the same mount (else EXDEV). Links only with O_PATH and O_NOFOLLOW."""
    return _openat2(folder, name, flags, 0, _BENEATH | _NO_LINKS | _NO_MAGIC_LINKS | _NO_OTHER_MOUNT)


def file_system_type(descriptor: int) -> int:
    """The magic number of the descriptor's file system, as in statfs(2)."""
    answer = _StatFs()
    _checked("fstatfs", _libc.fstatfs(ctypes.c_int(descriptor), ctypes.byref(answer)))
    return int(answer.type) & 0xFFFFFFFF


def _openat2(folder: int, path: str | bytes, flags: int, mode: int, resolve: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    arguments = (
        ctypes.c_int(folder),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    for attempt in range(_TRIES):
        try:
            return _call("openat2", _OPENAT2, *arguments)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")
