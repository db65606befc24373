"""Giving up powers of this process: capabilities, new privileges, being looked into, outliving its parent."""

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
    """Whether this process can use it now."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(held >> number & 1)


def drop_capabilities() -> None:
    """None is left in any of the five sets, and none comes back: also not for root, also not by running a program.

    Of this thread only: to be called while there is one. Who has none to begin with may not narrow the bounding set;
    no_new_privs stands in for it there.
    """
    for capability in range(_CAPABILITIES_AT_MOST):
        try:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):  # no such capability; not allowed
                break
            raise
    try:
        _prctl("PR_CAP_AMBIENT_CLEAR_ALL", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without ambient capabilities
            raise
    header = _Header(_CAPABILITY_VERSION_3, 0)
    nothing = (_Data * 2)()
    if _libc.capset(ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise _error("capset")
    no_new_privileges()


def no_new_privileges() -> None:
    """No program that is run from here gives more rights than there are now."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """No core dump, and nobody of the same user may trace this process or read its memory."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def die_with_parent(parent_pid: int) -> None:
    """Be killed when `parent_pid` ends, or end at once if it has ended already.

    The kernel watches the parent's thread that started us, not the whole process: it must be one that stays.
    """
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def _prctl(what: str, *arguments: int) -> None:
    padded = (*arguments, *(0,) * (5 - len(arguments)))
    if _libc.prctl(*map(ctypes.c_ulong, padded)) != 0:
        raise _error(f"prctl({what})")


def _error(what: str) -> OSError:
    reason = ctypes.get_errno()
    return OSError(reason, f"{what}: {os.strerror(reason)}")
