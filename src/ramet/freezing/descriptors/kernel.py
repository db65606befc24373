"""System calls with which the engine looks at another process's descriptors. None of them waits, or changes them."""

from __future__ import annotations

import ctypes
import os
import struct

from ramet.isolation.syscall_numbers import X86_64

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
    """A descriptor of ours for the same open description: offset, flags and options are shared with its owner."""
    return _call(X86_64["pidfd_getfd"], pidfd, number)


def compare_descriptors(pid: int, one: int, other: int) -> int:
    """0: both are the same open description. Else a stable order, as in a sort."""
    return (0, -1, 1, 1)[_call(X86_64["kcmp"], pid, pid, _KCMP_FILE, one, other)]


def is_watched(pid: int, epoll: int, number: int, nth: int, descriptor: int) -> bool:
    """Does the nth entry that `epoll` has for `number` watch the file that is now open as `descriptor`?"""
    slot = ctypes.create_string_buffer(struct.pack("III", epoll, number, nth), 12)
    try:
        return not _call(X86_64["kcmp"], pid, pid, _KCMP_EPOLL_TFD, descriptor, ctypes.addressof(slot))
    except OSError:
        return False


def duplicate_contents(source: int, target: int, most: int) -> int:
    """What is in one pipe is put into another as well; the first keeps it."""
    return _call(X86_64["tee"], source, target, most, _SPLICE_F_NONBLOCK)


def join_network(descriptor: int) -> None:
    """The calling thread moves to a network: that of a process (its pidfd), or one from /proc/<pid>/ns."""
    _call(X86_64["setns"], descriptor, _CLONE_NEWNET)


def settle_timer(descriptor: int) -> None:
    """Has the kernel account for what has expired, so that the timer's state in /proc is exact."""
    room = ctypes.create_string_buffer(32)
    _call(X86_64["timerfd_gettime"], descriptor, ctypes.addressof(room))
