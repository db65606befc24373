"""openat2(2), which Python does not have: the kernel itself keeps a path inside a sandbox's file tree."""

from __future__ import annotations

import ctypes
import errno
import os

# The same on every architecture since Linux 5.6.
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
# openat2(2): EAGAIN when a rename or mount raced with "..": try again. A sandbox can race on purpose, so not for ever.
_TRIES = 32


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class _StatFs(ctypes.Structure):
    # Only the first field is of interest; the rest is room for the kernel to write to (120 bytes on 64 bits).
    _fields_ = [("type", ctypes.c_long), ("rest", ctypes.c_char * 248)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path as if ``root`` were "/": links and ".." cannot lead out of it, nor can the links in /proc."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    name = ctypes.c_char_p(os.fsencode(path))
    for _ in range(_TRIES):
        descriptor = _libc.syscall(
            ctypes.c_long(_OPENAT2), ctypes.c_int(root), name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
        )
        if descriptor >= 0:
            return int(descriptor)
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            raise OSError(number, os.strerror(number))
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def file_system_type(descriptor: int) -> int:
    """The magic number of the file system behind a descriptor, as in statfs(2)."""
    answer = _StatFs()
    if _libc.fstatfs(ctypes.c_int(descriptor), ctypes.byref(answer)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(answer.type) & 0xFFFFFFFF
