"""A seccomp filter for our own processes that only communicate: data with a reason per line, and its compilation.

It complements Landlock: what both refuse is refused on kernels that have only one of them, and this filter also refuses
what Landlock does not know (UDP, signals on older kernels, io_uring, which bypasses other filters). Unlike a sandbox's
filter (``kernel.seccomp``) it lists what is forbidden: the interpreter is trusted until it is broken into.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from ramet.isolation.kernel.syscall_numbers import X86_64

_REFUSED: tuple[tuple[str, int, str], ...] = (
    ("no program is run", errno.EPERM, "execve execveat"),
    (
        "nobody looks into another process",
        errno.EPERM,
        "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd",
    ),
    (
        "no signal but to itself (the rest of it below)",
        errno.EPERM,
        "tkill pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo",
    ),
    (
        "no say in how fast others run, or where",
        errno.EPERM,
        "setpriority ioprio_set sched_setscheduler sched_setparam sched_setattr sched_setaffinity "
        "move_pages migrate_pages process_mrelease",
    ),
    ("no memory or queue that others of the user have, too", errno.EPERM, "shmget shmat shmctl semget msgget mq_open"),
    ("nothing is listened on but what was handed over", errno.EPERM, "bind"),
    ("no namespace, in which there would be capabilities again", errno.EPERM, "unshare setns"),
    (
        "no change of what is mounted",
        errno.EPERM,
        "mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr",
    ),
    ("keyrings", errno.EPERM, "keyctl add_key request_key"),
    ("large attack surface, no use here", errno.EPERM, "bpf perf_event_open userfaultfd open_by_handle_at"),
    ("it does what is refused elsewhere; programs fall back", errno.ENOSYS, "io_uring_setup io_uring_enter"),
    ("its flags lie in memory, where a filter cannot read them; glibc falls back to clone", errno.ENOSYS, "clone3"),
)

# Allowed only for this process: the first argument must be its pid. To most calls 0 means the caller, but to kill(2)
# its whole process group.
_TO_ITSELF = ("kill", "tgkill")
# A descriptor can be set to signal some process when data arrives: F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN,
# SIOCSPGRP. Landlock checks whom it signals only since Linux 6.12.
_OWNERS_OF_DESCRIPTORS = (("fcntl", (8, 10, 15)), ("ioctl", (0x8901, 0x8902)))
_OF_ITSELF = ("prlimit64",)  # too low a limit ends a process as a signal does

# An unconnected datagram socket can send to any path. A pair of connected streams reaches only itself.
_STREAM, _FLAGS_OF_SOCKETS = 1, (0, 0x800, 0x80000, 0x80800)  # SOCK_NONBLOCK, SOCK_CLOEXEC

_AF_UNIX = 1
_OF_THE_INTERNET = (2, 10, 16)  # AF_INET, AF_INET6; AF_NETLINK, with which the C library lists the host's addresses
_CLONE_NEW_ANY = 0x7E020000  # every CLONE_NEW* that fits clone(2)
_CLONE_THREAD = 0x10000

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _ANY_SET, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # classic BPF opcodes
# Offsets in struct seccomp_data; for arguments, of the low half.
_AT_NUMBER, _AT_ARCH, _AT_FIRST_ARGUMENT, _AT_SECOND_ARGUMENT = 0, 4, 16, 24


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_so, if_not, value)


def _call(name: str, *steps: bytes) -> bytes:
    """Code for one call; the call's number is loaded when it starts. `steps` must end with a return."""
    return _step(_EQUAL, X86_64[name], 0, len(steps)) + b"".join(steps)


def compile_filter(pid: int, connects: bool, reaches: bool = False) -> bytes:
    """Compile the filter for the process with this pid, to an array of ``struct sock_filter``."""
    refused, allowed = _step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ALLOW)
    argument = _step(_LOAD, _AT_FIRST_ARGUMENT)
    parts = [
        _step(_LOAD, _AT_ARCH),
        _step(_EQUAL, _AUDIT_ARCH_X86_64, 1, 0),
        _step(_RETURN, _KILL),  # 32-bit entry points number their calls differently
        _step(_LOAD, _AT_NUMBER),
        _step(_AT_LEAST, _X32_BIT, 0, 1),
        _step(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for _, reason, names in _REFUSED:
        refusing = [name for name in names.split() if not (reaches and name == "bind")]
        parts += [_call(name, _step(_RETURN, _ERRNO | reason)) for name in refusing]
    parts += [_call(name, argument, _step(_EQUAL, pid, 1, 0), refused, allowed) for name in _TO_ITSELF]
    # For prlimit64, 0 means the calling process.
    own = (_step(_EQUAL, 0, 2, 0), _step(_EQUAL, pid, 1, 0))
    parts += [_call(name, argument, *own, refused, allowed) for name in _OF_ITSELF]
    for name, commands in _OWNERS_OF_DESCRIPTORS:
        count = len(commands)
        checks = [_step(_EQUAL, command, count - at, 0) for at, command in enumerate(commands)]
        parts.append(_call(name, _step(_LOAD, _AT_SECOND_ARGUMENT), *checks, allowed, refused))
    if reaches:
        # No child processes: one left behind would outlive this process and hold all its descriptors. Threads end with
        # it.
        parts += [_call(name, refused) for name in ("fork", "vfork")]
        last = len(_OF_THE_INTERNET)
        families = [_step(_EQUAL, family, last - at, 0) for at, family in enumerate(_OF_THE_INTERNET)]
        parts.append(_call("socket", argument, *families, refused, allowed))
    elif connects:
        parts.append(_call("socket", argument, _step(_EQUAL, _AF_UNIX, 1, 0), refused, allowed))
    else:
        parts += [_call(name, refused) for name in ("socket", "connect")]
    kind = _step(_LOAD, _AT_SECOND_ARGUMENT)
    count = len(_FLAGS_OF_SOCKETS)
    streams = [_step(_EQUAL, _STREAM | flags, count - at, 0) for at, flags in enumerate(_FLAGS_OF_SOCKETS)]
    parts.append(_call("socketpair", kind, *streams, refused, allowed))
    thread = (_step(_ANY_SET, _CLONE_THREAD, 1, 0), refused) if reaches else ()
    parts.append(_call("clone", argument, _step(_ANY_SET, _CLONE_NEW_ANY, 0, 1), refused, *thread, allowed))
    return b"".join([*parts, allowed])


def refuse(connects: bool = False, reaches: bool = False) -> bool:
    """Install the filter, permanently. Returns False where this machine or kernel has none. Raises OSError.

    Needs no_new_privs, and must run while there is one thread: the filter applies to the caller and its children.
    ``connects``: may connect to unix sockets by path. ``reaches``: may use TCP and UDP, and no unix socket. With
    neither it can connect to nothing.
    """
    if platform.machine() != "x86_64":
        return False
    code = compile_filter(os.getpid(), connects, reaches)
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), 0, 0) == 0:
        return True
    reason = ctypes.get_errno()
    if reason == errno.EINVAL:  # a kernel without seccomp filters
        return False
    raise OSError(reason, f"prctl(PR_SET_SECCOMP): {os.strerror(reason)}")
