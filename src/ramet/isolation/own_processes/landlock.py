"""Landlock: a process permanently gives up access to files, TCP and signals. Needs no privilege.

Only what `Rights` names is left; everything else that this kernel can refuse is refused. What it cannot refuse is
listed in `Standing.missing`, so that callers do not rely on a wall that is not there. Constants are from
linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable

from ramet.isolation.own_processes import powers
from ramet.protocol.lazy_dataclasses import dataclass

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in range(6, 13))
_REFER, _TRUNCATE, _IOCTL_DEV, _RESOLVE_UNIX = 1 << 13, 1 << 14, 1 << 15, 1 << 16
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2

# Rights that apply to files. A rule for a file may name no other, or the kernel answers EINVAL.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX
_OF_VERSION_1 = (1 << 13) - 1

# For folders with a database: plain files are created and removed there, but no links, devices, pipes or sockets.
_KEEP = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _MAKE_REG | _REMOVE_FILE


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # packed, as in the kernel; Python 3.14 requires the layout by name
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights that a process keeps."""

    read: tuple[str, ...] = ()  # files, and folders with everything below; reading only, no execution
    keep: tuple[str, ...] = ()  # folders in which plain files may be created, changed and removed
    connect: tuple[str, ...] = ()  # unix sockets, or folders of them
    network: bool = False  # whether TCP stays unrestricted


@dataclass(frozen=True, slots=True)
class Standing:
    """The restrictions that Landlock enforces now, and those that this kernel's version cannot enforce yet."""

    version: int
    missing: tuple[str, ...]


UNIX_SOCKETS = "unix sockets by path (Linux 7.1)"

# Each right with the version of the interface, and the kernel, that brought it.
_SINCE = (
    (1, "files (Linux 5.13)"),
    (3, "truncating files (Linux 6.2)"),
    (4, "TCP (Linux 6.7)"),
    (6, "signals to others and abstract unix sockets (Linux 6.12)"),
    (9, UNIX_SOCKETS),
)


def version() -> int:
    """Version of the Landlock interface of this kernel. 0: none."""
    try:
        return _call("landlock_create_ruleset", _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))
    except OSError as error:
        # Not built in, disabled at boot, or forbidden by a filter.
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def restrict(rights: Rights) -> Standing:
    """Give up everything but `rights`, for this process and its future children.

    Call it while the process has one thread: the kernel restricts the calling thread and its children only. Sets
    no_new_privs, which Landlock requires. Without Landlock in the kernel nothing else happens. Raises OSError.
    """
    offered = version()
    missing = tuple(what for since, what in _SINCE if offered < since)
    # Required by landlock_restrict_self for a process without CAP_SYS_ADMIN.
    powers.no_new_privileges()
    if offered == 0:
        return Standing(0, missing)
    handled = _handled(offered, rights.network)
    # Older kernels refuse nonzero bytes that they do not know (E2BIG).
    size = 24 if offered >= 6 else 16 if offered >= 4 else 8
    ruleset = _call(
        "landlock_create_ruleset",
        _CREATE_RULESET,
        ctypes.byref(handled),
        ctypes.c_size_t(size),
        ctypes.c_uint(0),
    )
    try:
        _allow(ruleset, rights.read, (_READ_FILE | _READ_DIR) & handled.files)
        _allow(ruleset, rights.keep, _KEEP & handled.files)
        _allow(ruleset, rights.connect, _RESOLVE_UNIX & handled.files)
        _call("landlock_restrict_self", _RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)
    return Standing(offered, missing)


def _handled(offered: int, free: bool) -> _Ruleset:
    """The rights that this kernel can refuse. What is not handled stays allowed."""
    files = _OF_VERSION_1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV), (9, _RESOLVE_UNIX)):
        if offered >= since:
            files |= right
    network = _BIND_TCP | _CONNECT_TCP if offered >= 4 and not free else 0
    scoped = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if offered >= 6 else 0
    return _Ruleset(files, network, scoped)


def _allow(ruleset: int, paths: Iterable[str], rights: int) -> None:
    """Allow rights on paths. A path that does not exist or cannot be opened is skipped: there is nothing to allow."""
    if rights == 0:
        return
    for path in paths:
        try:
            # A rule applies to the inode behind the descriptor; replacing the path later does not extend it.
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        try:
            folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            beneath = _PathBeneath(rights if folder else rights & _OF_FILES, descriptor)
            _call(
                f"landlock_add_rule({path})",
                _ADD_RULE,
                ctypes.c_int(ruleset),
                ctypes.c_int(_PATH_BENEATH),
                ctypes.byref(beneath),
                ctypes.c_uint(0),
            )
        finally:
            os.close(descriptor)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(what: str, number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        reason = ctypes.get_errno()
        raise OSError(reason, f"{what}: {os.strerror(reason)}")
    return result
