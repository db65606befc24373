"""As root: a host uid of its own for each engine, because the kernel counts some resources per user.

Pipe memory, descriptors in flight through sockets, inotify instances and pending signals are counted per host uid, over
all programs that have it. Each engine therefore takes a uid out of a range and locks it: one byte of a file that all
engines of this system open. The lock belongs to the open file, which the launcher inherits and keeps open. The kernel
releases it when the launcher ends, however that happens, and the launcher is the last process of its engine.

Engines in other containers may not see the file. So each starts its search at a random place of a large range.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
import struct
from collections.abc import Iterator, Sequence

from ramet.errors import LimitReached
from ramet.protocol.lazy_dataclasses import dataclass

# systemd's table of uids leaves 1879048192 to 2147483647 unassigned, and no distribution uses them.
FIRST_UID = 1_900_000_000
UIDS = 1_000_000

# In a container with few uids: the last ones, except the two that mean "nobody" and "no uid".
_LAST_UIDS = 256
_NEVER = frozenset((0, 65_534, 65_535))

_TRIES_AT_MOST = 4096
_FOLDERS = ("/run", "/dev/shm", "/tmp")
_LOCK_NAME = "ramet-engine-uids"
_CAPABILITIES = 1 << 21 | 1 << 7 | 1 << 6  # CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class EngineUid:
    """A host uid that no other engine has.

    ``lock`` is the descriptor that holds its lock; None: there was no place for one.
    """

    uid: int
    lock: int | None

    def close(self) -> None:
        """Close our copy of the lock. The launcher's copy still holds it."""
        if self.lock is not None:
            os.close(self.lock)


def choices() -> range | None:
    """The host uids that our engines may have. None: we are not root, or may not choose one."""
    if os.geteuid() != 0:
        return None
    with open("/proc/self/status", encoding="ascii") as lines:
        held = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    if held & _CAPABILITIES != _CAPABILITIES:
        return None
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        mapped = [(int(inside), int(count)) for inside, _, count in (line.split() for line in lines)]
    return _choices(mapped)


def _choices(mapped: Sequence[tuple[int, int]]) -> range | None:
    """Choose the range. ``mapped``: first uid and count of each range of our user namespace."""
    if any(first <= FIRST_UID and first + count >= FIRST_UID + UIDS for first, count in mapped):
        return range(FIRST_UID, FIRST_UID + UIDS)
    first, count = max(mapped)
    end = first + count
    begin = max(first, end - _LAST_UIDS, 1)
    return range(begin, end) if begin < end else None


def take(among: range) -> EngineUid:
    """Take a uid that no other engine on this system has. Raises LimitReached."""
    lock = _open_lock()
    if lock is None:
        return EngineUid(next(_candidates(among)), None)
    try:
        for uid in _candidates(among):
            if _lock_byte(lock, uid):
                return EngineUid(uid, lock)
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    raise LimitReached(
        f"every host uid for engines is in use ({among[0]} to {among[-1]})",
        hint="end some programs that use sandboxes",
    )


def _candidates(among: range) -> Iterator[int]:
    # A random start, so that engines that cannot see each other's locks rarely choose the same uid.
    start = random.randrange(len(among))
    for step in range(min(len(among), _TRIES_AT_MOST)):
        uid = among[(start + step) % len(among)]
        if uid not in _NEVER:
            yield uid


def _lock_byte(lock: int, uid: int) -> bool:
    try:
        # An OFD lock belongs to the open file, not to the process: a child that inherits the descriptor keeps it.
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, uid, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _open_lock() -> int | None:
    """Open the file that all engines lock, in the first folder that allows it. None: this system has no such folder."""
    for folder in _FOLDERS:
        try:
            lock = os.open(f"{folder}/{_LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            continue
        if lock < 3:  # an owner without standard streams: the launcher needs the numbers 0 to 2 itself
            low, lock = lock, fcntl.fcntl(lock, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(low)
        found = os.fstat(lock)
        # Everybody may create files in two of these folders. Another user's file could be locked by him for ever.
        if stat.S_ISREG(found.st_mode) and found.st_uid == 0:
            return lock
        os.close(lock)
    return None
