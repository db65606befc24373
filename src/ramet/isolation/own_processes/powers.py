"""Gives up privileges of this process: capabilities, gaining new ones, being traced, outliving its parent."""

from __future__ import annotations

import ctypes
import errno
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES_AT_MOST = 64

CAP_SETFCAP = 31

_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def has_capability(number: int) -> bool:
    """Whether the capability is in this process's effective set."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(held >> number & 1)


def drop_capabilities() -> None:
    """Empty all five capability sets for good, also for root and also across execve. Raises OSError.

    Capabilities belong to a thread, so call this while there is only one. A process without CAP_SETPCAP may not shrink
    the bounding set; there no_new_privs keeps execve from adding any.
    """
    for capability in range(_CAPABILITIES_AT_MOST):
        try:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):  # past the last capability, or not allowed
                break
            raise
    try:
        _prctl("PR_CAP_AMBIENT_CLEAR_ALL", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without ambient capabilities
            raise
    # Last, because shrinking the bounding set needs CAP_SETPCAP.
    header = _Header(_CAPABILITY_VERSION_3, 0)
    nothing = (_Data * 2)()
    if _libc.capset(ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise _error("capset")
    no_new_privileges()


def no_new_privileges() -> None:
    """Keep execve from granting privileges: set-uid bits and file capabilities have no effect from here on."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """Disable core dumps, and keep processes of the same user from tracing this one or reading its memory."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def die_with_parent(parent_pid: int) -> None:
    """Be killed when `parent_pid` ends, or exit at once if it already has.

    The kernel watches the thread that forked us, not the whole parent process, so that thread must be a lasting one.
    """
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the call above; then no signal will come.
    if os.getppid() != parent_pid:
        os._exit(0)


def _prctl(what: str, *arguments: int) -> None:
    padded = (*arguments, *(0,) * (5 - len(arguments)))
    if _libc.prctl(*map(ctypes.c_ulong, padded)) != 0:
        raise _error(f"prctl({what})")


def _error(what: str) -> OSError:
    reason = ctypes.get_errno()
    return OSError(reason, f"{what}: {os.strerror(reason)}")
