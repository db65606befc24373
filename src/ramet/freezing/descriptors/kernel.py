"""System calls with which the engine examines another process's descriptors. None of them waits or changes anything."""

from __future__ import annotations

import ctypes
import os
import struct

from ramet.isolation.kernel.syscall_numbers import X86_64

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long,) * 7

_KCMP_FILE, _KCMP_EPOLL_TFD = 0, 7
_SPLICE_F_NONBLOCK = 2
_CLONE_NEWNET = 0x40000000


def _call(number: int, *arguments: int) -> int:
    result: int = _syscall(number, *arguments, *(0,) * (6 - len(arguments)))
    if result < 0:
        reason = ctypes.get_errno()
        raise OSError(reason, os.strerror(reason))
    return result


def copy_descriptor(pidfd: int, number: int) -> int:
    """Get a descriptor for the same open file description: offset, flags and options are shared with its owner."""
    return _call(X86_64["pidfd_getfd"], pidfd, number)


def compare_descriptors(pid: int, one: int, other: int) -> int:
    """0 if both are the same open file description. Otherwise a stable order, for sorting."""
    # kcmp answers 0 equal, 1 less, 2 greater, 3 not equal without an order.
    return (0, -1, 1, 1)[_call(X86_64["kcmp"], pid, pid, _KCMP_FILE, one, other)]


def is_watched(pid: int, epoll: int, number: int, nth: int, descriptor: int) -> bool:
    """Whether the nth entry that `epoll` has for `number` watches the file that is now open as `descriptor`."""
    slot = ctypes.create_string_buffer(struct.pack("III", epoll, number, nth), 12)
    try:
        return not _call(X86_64["kcmp"], pid, pid, _KCMP_EPOLL_TFD, descriptor, ctypes.addressof(slot))
    except OSError:
        return False


def duplicate_contents(source: int, target: int, most: int) -> int:
    """Copy what is in one pipe into another. The first keeps it."""
    return _call(X86_64["tee"], source, target, most, _SPLICE_F_NONBLOCK)


def join_network(descriptor: int) -> None:
    """Move the calling thread to a network, given by a pidfd or by a file of /proc/<pid>/ns."""
    _call(X86_64["setns"], descriptor, _CLONE_NEWNET)


def settle_timer(descriptor: int) -> None:
    """Make the kernel account for expirations, so that the timer's state in /proc is exact."""
    room = ctypes.create_string_buffer(32)
    _call(X86_64["timerfd_gettime"], descriptor, ctypes.addressof(room))
