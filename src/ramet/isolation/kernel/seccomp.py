"""The system calls that a sandbox may make: data with a reason per line, compiled to a seccomp filter.

A template installs the filter once, before its first instruction, and everything thawed from it inherits it. Calls that
are not listed do not exist (ENOSYS). The few calls that only a thaw makes return SECCOMP_RET_TRACE: in a sandbox, which
has no tracer, the kernel turns that into ENOSYS, while the engine, which traces the task during a thaw, lets them pass.
So no second filter has to be installed at each thaw.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection

from ramet.isolation.kernel.syscall_numbers import X86_64
from ramet.protocol.lazy_dataclasses import dataclass

_ALLOWED: tuple[tuple[str, str], ...] = (
    (
        "read, write and move within descriptors",
        "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek sendfile splice tee "
        "vmsplice copy_file_range",
    ),
    ("open and close (opening for creation and fcntl are checked below)", "close dup dup2 dup3 ioctl"),
    (
        "wait on descriptors",
        "poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_wait "
        "epoll_wait_old epoll_pwait epoll_pwait2",
    ),
    (
        "look at files",
        "stat lstat fstat newfstatat statx statfs fstatfs access faccessat faccessat2 getdents getdents64 "
        "readlink readlinkat getcwd ustat sysfs",
    ),
    (
        "change files of the pod's own tree",
        "truncate ftruncate fallocate mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat "
        "symlink symlinkat "
        "chown fchown lchown fchownat utime utimes utimensat futimesat umask chdir fchdir fsync fdatasync "
        "sync_file_range "
        "flock fadvise64 readahead",
    ),
    (
        "extended attributes",
        "setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr "
        "lremovexattr fremovexattr",
    ),
    ("watch files (instances are bounded per pod)", "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch"),
    (
        "pipes and small kernel objects",
        "pipe pipe2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime",
    ),
    (
        "memory of the own process (mmap is checked below)",
        "munmap mprotect mremap msync brk madvise mincore mlock mlock2 munlock mlockall munlockall "
        "remap_file_pages "
        "pkey_mprotect pkey_alloc pkey_free membarrier mbind set_mempolicy get_mempolicy "
        "set_mempolicy_home_node cachestat",
    ),
    (
        "shared memory and queues of the pod's own ipc namespace (shmget is checked below)",
        "shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl",
    ),
    (
        "message queues of the pod's own ipc namespace",
        "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr",
    ),
    (
        "sockets (those who make one are checked below; the pod has a network of its own)",
        "bind listen accept accept4 connect getsockname getpeername sendto recvfrom sendmsg recvmsg "
        "sendmmsg recvmmsg setsockopt getsockopt shutdown",
    ),
    (
        "make and end processes (clone is checked below)",
        "fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open pidfd_send_signal",
    ),
    (
        "signals",
        "rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo "
        "rt_sigsuspend rt_sigreturn sigaltstack pause restart_syscall",
    ),
    (
        "threads",
        "futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list get_robust_list set_tid_address "
        "gettid rseq arch_prctl set_thread_area get_thread_area",
    ),
    (
        "scheduling, within what the kernel lets an unprivileged process do",
        "sched_yield sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max "
        "sched_get_priority_min "
        "sched_rr_get_interval sched_setaffinity sched_getaffinity sched_setattr sched_getattr getpriority "
        "setpriority ioprio_set ioprio_get getcpu",
    ),
    (
        "time",
        "nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times alarm getitimer setitimer "
        "timer_create timer_settime timer_gettime timer_getoverrun timer_delete",
    ),
    (
        "who am I (one uid, no capabilities: none of these can gain anything)",
        "getpid getppid getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid "
        "setregid setresuid setresgid setfsuid setfsgid "
        "setgroups getpgid setpgid getpgrp setsid getsid capget capset prctl personality uname sysinfo "
        "getrusage getrlimit getrandom",
    ),
    (
        "walls a program builds for itself (seccomp is checked below)",
        "landlock_create_ruleset landlock_add_rule landlock_restrict_self",
    ),
)

_REFUSED: tuple[tuple[str, int, str], ...] = (
    (
        "the file tree is the engine's to build",
        errno.EPERM,
        "mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr "
        "statmount listmount",
    ),
    ("no namespace below a pod", errno.EPERM, "unshare"),
    (
        "nobody looks into another process",
        errno.EPERM,
        "ptrace process_vm_readv process_vm_writev process_madvise kcmp",
    ),
    ("keyrings are not divided by namespaces", errno.EPERM, "keyctl add_key request_key"),
    (
        "large attack surface, no use in a sandbox",
        errno.EPERM,
        "bpf perf_event_open userfaultfd fanotify_init fanotify_mark open_by_handle_at name_to_handle_at",
    ),
    (
        "the kernel and the machine",
        errno.EPERM,
        "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct syslog "
        "iopl ioperm quotactl",
    ),
    (
        "the host's clock and names",
        errno.EPERM,
        "settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname",
    ),
    (
        "its flags and mode lie in memory, where a filter cannot read them; programs fall back to openat",
        errno.ENOSYS,
        "openat2",
    ),
    (
        "programs fall back to ordinary reads and writes",
        errno.ENOSYS,
        "io_uring_setup io_uring_enter io_uring_register io_setup io_submit io_getevents io_destroy io_cancel",
    ),
)

# A thaw makes these calls under the engine's control. Sandboxes do not need them.
_TRACED = "setns clone3 pidfd_getfd"

# Answered with success and not executed: they would make the host write all its file systems to disk, and nothing of a
# sandbox is kept on disk.
_IGNORED = "sync syncfs"

# RLIMIT_CORE of 1 keeps a crash from starting the host's core dump handler, which runs as root (fs/coredump.c treats 1
# as "do not pipe"). The template sets it; attempts to change it succeed without effect.
_RLIMIT_CORE = 4

# Address families that can lead out of a network namespace (AF_VSOCK reaches the hypervisor) or into rarely used kernel
# code are refused.
_AF_UNIX, _AF_NETLINK = 1, 16
_FAMILIES = (_AF_UNIX, 2, 10)  # AF_INET, AF_INET6; AF_NETLINK depends on its protocol
# The protocols of the C library, and of programs that list addresses and sockets. The other netlink protocols (packet
# filters, audit, driver connectors, families that modules add) are kernel code that no program in a sandbox needs.
_NETLINK_PROTOCOLS = (0, 4)  # NETLINK_ROUTE, NETLINK_SOCK_DIAG

# Huge pages that the host's administrator has reserved. A sandbox that took one would take it from the program it is
# reserved for, and no memory limit counts it. Refused as on a host that has reserved none; programs fall back.
_HUGE_PAGES = {
    "mmap": (3, 0x40000, errno.ENOMEM),  # argument with the flags; MAP_HUGETLB
    "memfd_create": (1, 0x4, errno.ENOSYS),  # MFD_HUGETLB
    "shmget": (2, 0o4000, errno.ENOMEM),  # SHM_HUGETLB
}

# The pod's init has the same uid as every process in the pod, so any of them could lower its limits and disable it.
_INIT = 1

# A set-uid program in a writable folder of the host would give the owner's rights to every user who starts it there.
_MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
_CREATING = {"open": (1, 2), "openat": (2, 3)}  # arguments with the flags and with the mode
_SET_ID_BITS = 0o6000
_O_CREAT_OR_TMPFILE = 0o20000100

# A lease makes everybody wait who opens the file, on the host too. A directory notification reports what the host does
# there.
_FCNTL_REFUSED = (1024, 1026)  # F_SETLEASE, F_NOTIFY

# clone(2) passes flags in a register, where the filter can read them. clone3 passes them in memory, so it is not
# allowed.
_CLONE_NEW_ANY = 0x7E020000  # every CLONE_NEW* that fits clone(2)
# CLONE_PARENT, CLONE_UNTRACED: such a child would not be the sandbox's, or would escape the tracer.
_CLONE_TRACED_ONLY = 0x00808000
_CLONE_VM = 0x100
_CLONE_THREAD_OR_VFORK = 0x00014000
# With this flag close_range gives the calling thread its own descriptor table. A freeze reads one table per process.
_CLOSE_RANGE_UNSHARE = 2
# With a supervisor of its own a program could answer "continue", which takes precedence over the TRACE answer of this
# filter. A sandbox could then make every traced call.
_SECCOMP_NEW_LISTENER = 1 << 3

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_RET_ALLOW, _RET_ERRNO, _RET_TRACE, _RET_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x7FF00000, 0x80000000
_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
# A filter sees 32 bits at a time: an argument is two words, the low one first.
_AT_NUMBER, _AT_ARCH, _AT_ARGUMENT_0 = 0, 4, 16  # offsets in struct seccomp_data (low halves)


@dataclass(frozen=True, slots=True)
class _Instruction:
    code: int
    jump_true: int
    jump_false: int
    value: int

    def encode(self) -> bytes:
        return struct.pack("<HBBI", self.code, self.jump_true, self.jump_false, self.value)


def _load(offset: int) -> _Instruction:
    return _Instruction(_LOAD, 0, 0, offset)


def _load_argument(index: int) -> _Instruction:
    return _load(_AT_ARGUMENT_0 + 8 * index)


def _load_high_half_of_argument(index: int) -> _Instruction:
    return _load(_AT_ARGUMENT_0 + 8 * index + 4)


def _answer(value: int) -> _Instruction:
    return _Instruction(_RETURN, 0, 0, value)


def _numbers(names: str) -> list[int]:
    return [X86_64[name] for name in names.split()]


def _when_number(number: int, body: list[_Instruction]) -> list[_Instruction]:
    """Code for one call: `body` runs if the number matches, and must end with a return. Otherwise it is skipped."""
    return [_Instruction(_JUMP_EQUAL, 0, len(body), number), *body]


def allowed_names() -> frozenset[str]:
    """Every call that is allowed with any arguments."""
    return frozenset(name for _, names in _ALLOWED for name in names.split())


def _made_sockets() -> list[_Instruction]:
    """The answer for `socket`: depends on the family, and for netlink on the protocol."""
    # Jump distances count the instructions in between. Each match jumps to the "allow" that follows its list.
    families = [
        _Instruction(_JUMP_EQUAL, len(_FAMILIES) + 1 - index, 0, family) for index, family in enumerate(_FAMILIES)
    ]
    protocols = [
        _Instruction(_JUMP_EQUAL, len(_NETLINK_PROTOCOLS) - index, 0, protocol)
        for index, protocol in enumerate(_NETLINK_PROTOCOLS)
    ]
    return [
        _load_argument(0),
        *families,
        _Instruction(_JUMP_EQUAL, 2, 0, _AF_NETLINK),
        _answer(_RET_ERRNO | errno.EAFNOSUPPORT),
        _answer(_RET_ALLOW),
        _load_argument(2),
        *protocols,
        _answer(_RET_ERRNO | errno.EPROTONOSUPPORT),
        _answer(_RET_ALLOW),
    ]


def compile_filter(uncounted: Collection[str] = ()) -> bytes:
    """Compile the filter to an array of ``struct sock_filter``.

    ``uncounted``: calls that would give memory which no limit of this host counts. They fail with ENOSPC.
    ``memfd_create``, which a thaw makes as well, is answered with TRACE and so fails with ENOSYS.
    """
    refuse = _RET_ERRNO | errno.EPERM
    program = [
        _load(_AT_ARCH),
        _Instruction(_JUMP_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        _answer(_RET_KILL_PROCESS),  # 32-bit entry points number their calls differently: nothing below would apply
        _load(_AT_NUMBER),
        # The x32 ABI shares our architecture value and has its own table of calls, from this bit on.
        _Instruction(_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        _answer(_RET_ERRNO | errno.ENOSYS),
    ]
    for name in uncounted:
        answer = _RET_TRACE if name == "memfd_create" else _RET_ERRNO | errno.ENOSPC
        program += _when_number(X86_64[name], [_answer(answer)])
    # mmap comes first because programs call it all the time, and the kernel's bitmap of constant answers (Linux 5.11)
    # skips only calls whose answer does not depend on arguments.
    for name, (flags, bit, reason) in _HUGE_PAGES.items():
        no_huge_page = [_Instruction(_JUMP_SET, 0, 1, bit), _answer(_RET_ERRNO | reason), _answer(_RET_ALLOW)]
        program += _when_number(X86_64[name], [_load_argument(flags), *no_huge_page])
    for _, names in _ALLOWED:
        for number in _numbers(names):
            program += _when_number(number, [_answer(_RET_ALLOW)])
    for _, reason, names in _REFUSED:
        for number in _numbers(names):
            program += _when_number(number, [_answer(_RET_ERRNO | reason)])
    program += _when_number(
        X86_64["clone"],
        [
            _load_argument(0),
            _Instruction(_JUMP_SET, 0, 1, _CLONE_NEW_ANY),
            _answer(refuse),
            _Instruction(_JUMP_SET, 0, 1, _CLONE_TRACED_ONLY),
            _answer(_RET_TRACE),
            _Instruction(_JUMP_SET, 0, 2, _CLONE_VM),
            # A separate process that shares the sandbox's memory would keep running on it during a freeze, so CLONE_VM
            # needs CLONE_THREAD or CLONE_VFORK. (A vfork inside a vfork whose middle process is killed still leaves
            # such a process, which no filter can see. A fork of the sandbox stops it like every other process of the
            # pod, and the copy shares nothing with it.)
            _Instruction(_JUMP_SET, 1, 0, _CLONE_THREAD_OR_VFORK),
            _answer(refuse),
            _answer(_RET_ALLOW),
        ],
    )
    program += _when_number(
        X86_64["close_range"],
        [_load_argument(2), _Instruction(_JUMP_SET, 0, 1, _CLOSE_RANGE_UNSHARE), _answer(refuse), _answer(_RET_ALLOW)],
    )
    program += _when_number(
        X86_64["seccomp"],
        [_load_argument(1), _Instruction(_JUMP_SET, 0, 1, _SECCOMP_NEW_LISTENER), _answer(refuse), _answer(_RET_ALLOW)],
    )
    no_set_id = [_Instruction(_JUMP_SET, 0, 1, _SET_ID_BITS), _answer(refuse), _answer(_RET_ALLOW)]
    for name, mode in _MODE_ARGUMENT.items():
        program += _when_number(X86_64[name], [_load_argument(mode), *no_set_id])
    for name, (flags, mode) in _CREATING.items():
        # Without O_CREAT or O_TMPFILE the mode argument is not given, and the register holds anything.
        creates = [_load_argument(flags), _Instruction(_JUMP_SET, 1, 0, _O_CREAT_OR_TMPFILE), _answer(_RET_ALLOW)]
        program += _when_number(X86_64[name], [*creates, _load_argument(mode), *no_set_id])
    commands = [
        _Instruction(_JUMP_EQUAL, len(_FCNTL_REFUSED) - index, 0, command)
        for index, command in enumerate(_FCNTL_REFUSED)
    ]
    program += _when_number(X86_64["fcntl"], [_load_argument(1), *commands, _answer(_RET_ALLOW), _answer(refuse)])
    program += _when_number(X86_64["socket"], _made_sockets())
    # For every other family the kernel creates two sockets before it refuses to pair them.
    pair = _Instruction(_JUMP_EQUAL, 1, 0, _AF_UNIX)
    program += _when_number(
        X86_64["socketpair"],
        [_load_argument(0), pair, _answer(_RET_ERRNO | errno.EAFNOSUPPORT), _answer(_RET_ALLOW)],
    )
    pretend = _RET_ERRNO | 0
    for number in _numbers(_IGNORED):
        program += _when_number(number, [_answer(pretend)])
    is_core = _Instruction(_JUMP_EQUAL, 1, 0, _RLIMIT_CORE)
    program += _when_number(X86_64["setrlimit"], [_load_argument(0), is_core, _answer(_RET_ALLOW), _answer(pretend)])
    asks_only = [  # no new limit: both halves of the pointer are zero
        _load_argument(2),
        _Instruction(_JUMP_EQUAL, 0, 3, 0),
        _load_high_half_of_argument(2),
        _Instruction(_JUMP_EQUAL, 0, 1, 0),
        _answer(_RET_ALLOW),
    ]
    # Every process in the pod may read the init's limits, and change those of other processes, but not RLIMIT_CORE (see
    # above).
    of_the_init = [_load_argument(0), _Instruction(_JUMP_EQUAL, 0, len(asks_only) + 1, _INIT), *asks_only]
    program += _when_number(
        X86_64["prlimit64"],
        [
            *(*of_the_init, _answer(refuse)),
            *(_load_argument(1), is_core, _answer(_RET_ALLOW)),
            *(*asks_only, _answer(pretend)),
        ],
    )
    for number in _numbers(_TRACED):
        program += _when_number(number, [_answer(_RET_TRACE)])
    program.append(_answer(_RET_ERRNO | errno.ENOSYS))
    return b"".join(instruction.encode() for instruction in program)
