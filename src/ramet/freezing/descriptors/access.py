"""The engine's access to a paused process's descriptors. Everything it opens is closed again before it is done."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

from ramet.freezing import _core
from ramet.freezing.descriptors.bounds import MOST_FACT_BYTES, Budget, too_much
from ramet.freezing.descriptors.calls import O_CLOEXEC
from ramet.freezing.descriptors.kernel import copy_descriptor
from ramet.freezing.descriptors.maps import SharedMap, read_shared_maps
from ramet.freezing.descriptors.recipes import Dead, Inode
from ramet.freezing.descriptors.sockets.diagnosis import SocketDiagnosis
from ramet.freezing.descriptors.target import PausedProcess
from ramet.isolation.kernel.syscalls import find_in_root
from ramet.protocol.lazy_dataclasses import dataclass

_READ_BYTES = 65_536
_REPEATED = frozenset(("lock", "tfd", "inotify"))
_TOO_LONG = b"/ (deleted)"  # stands for a link that is too long to read; no path leads to it
OWN_PLACES: tuple[bytes, ...] = (b"/tmp", b"/dev/shm")


@dataclass(frozen=True, slots=True)
class Opened:
    """One descriptor number, as /proc describes it."""

    number: int
    link: bytes  # bytes, because a path may contain any
    flags: int
    facts: dict[str, str]
    lines: tuple[str, ...]  # facts that may occur more than once: locks, entries of an epoll, watches

    @property
    def status_flags(self) -> int:
        return self.flags & ~O_CLOEXEC

    @property
    def position(self) -> int:
        return int(self.facts["pos"])

    @property
    def can_read(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_WRONLY and not self.flags & os.O_PATH


class ProcessAccess:
    """Owns what is open in the engine while one process is read. A context manager."""

    def __init__(self, target: PausedProcess, table: _core.Table) -> None:
        self.target = target
        # Read in one call by the C extension. The process is stopped, so the table cannot change meanwhile.
        self._table = {number: (link, text) for number, link, text in table}
        self.budget = Budget()
        self.lost: list[str] = []
        # Contents are read once per pipe and per inode, however many descriptions there are.
        self.pipes_read: set[bytes] = set()
        self.nameless_read: set[Inode] = set()
        self._mounts: frozenset[int] | None = None
        self._cleanup = contextlib.ExitStack()
        self._diagnosis: SocketDiagnosis | None = None
        self._maps: tuple[SharedMap, ...] | None = None

    def __enter__(self) -> ProcessAccess:
        """Open the two folders by which the process's descriptors are reached, relative to its pid."""
        # If the second open fails, the first is closed again.
        with contextlib.ExitStack() as cleanup:
            self._links = _folder(cleanup, f"/proc/{self.target.pid}/fd")
            self._facts = _folder(cleanup, f"/proc/{self.target.pid}/fdinfo")
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def numbers(self) -> list[int]:
        return sorted(self._table)

    def opened(self, number: int) -> Opened:
        link, text = self._table[number]
        facts, lines = self.facts(number) if text is None else _parse_facts(text)
        return Opened(number, link or _TOO_LONG, int(facts["flags"], 8), facts, lines)

    def facts(self, number: int) -> tuple[dict[str, str], tuple[str, ...]]:
        """Read a descriptor's fdinfo again. Raises ForkFailed when it is too long."""
        descriptor = os.open(str(number), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._facts)
        try:
            # An epoll has a line for each entry, so its fdinfo may be long.
            text = os.read(descriptor, _READ_BYTES)
            more = text
            while len(more) == _READ_BYTES:
                more = os.read(descriptor, _READ_BYTES)
                text += more
                if len(text) > MOST_FACT_BYTES:
                    raise too_much(f"descriptor {number} has too many entries")
        finally:
            os.close(descriptor)
        return _parse_facts(text.decode("ascii", "replace"))

    def status(self, number: int) -> os.stat_result:
        """stat of the open file itself. This opens nothing."""
        return os.stat(str(number), dir_fd=self._links)

    def leads_to(self, path: bytes, inode: Inode) -> bool:
        """Whether a path in the pod leads to this inode.

        The links in /proc/<pid>/fd say where a file was, not where it is.
        """
        try:
            # Resolved with the pod's root as "/": links of the sandbox must not lead to files of the host.
            found = find_in_root(self.target.root, path)
        except (OSError, ValueError):
            return False
        try:
            return inode_of(os.fstat(found)) == inode
        finally:
            os.close(found)

    def has_folder(self, path: bytes) -> bool:
        try:
            found = find_in_root(self.target.root, path)
        except (OSError, ValueError):
            return False
        try:
            return stat.S_ISDIR(os.fstat(found).st_mode)
        finally:
            os.close(found)

    def in_own_tree(self, opened: Opened) -> bool:
        """Whether it is on one of the pod's own layers, which every copy has.

        A copy may not have a folder of the host.
        """
        return self._owns(int(opened.facts["mnt_id"]))

    def is_own(self, descriptor: int) -> bool:
        """The same for one of the engine's descriptors."""
        return self._owns(_mount_of(descriptor))

    def _owns(self, mount: int) -> bool:
        # Found once per process: looking them up takes several system calls, and the pod waits.
        if self._mounts is None:
            found = {_mount_of(self.target.root)}
            for path in OWN_PLACES:
                try:
                    descriptor = find_in_root(self.target.root, path)
                except OSError:
                    continue
                found.add(_mount_of(descriptor))
                os.close(descriptor)
            self._mounts = frozenset(found)
        return mount in self._mounts

    def dead(self, opened: Opened, what: str | None = None) -> Dead:
        """Record a descriptor that a copy will have only as a dead one."""
        what = what or os.fsdecode(opened.link)[:200]
        self.lost.append(f"descriptor {opened.number} is dead: {what!r}")
        return Dead(what)

    @contextlib.contextmanager
    def copy(self, number: int) -> Iterator[int]:
        """Get the same open file description in the engine.

        It shares offset and flags with its owner: do not change them.
        """
        descriptor = copy_descriptor(self.target.pidfd, number)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def copy_of_socket(self, number: int) -> Iterator[socket.socket]:
        with self.copy(number) as descriptor:
            copy = socket.socket(fileno=descriptor)
            try:
                yield copy
            finally:
                copy.detach()  # `copy` closes the descriptor

    @contextlib.contextmanager
    def reopened(self, number: int) -> Iterator[int]:
        """Open a regular file again, for an open file description of the engine's own."""
        # O_NONBLOCK and O_NOCTTY, because the inode could be a FIFO or a terminal in spite of what was read before.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(str(number), flags, dir_fd=self._links)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise too_much(f"descriptor {number} is not what it was a moment ago")
            yield descriptor
        finally:
            os.close(descriptor)

    def diagnosis(self) -> SocketDiagnosis:
        """The socket diagnosis in the pod's network, opened on first use."""
        if self._diagnosis is None:
            self._diagnosis = SocketDiagnosis(self.target.pidfd)
            self._cleanup.callback(self._diagnosis.close)
        return self._diagnosis

    def shared_maps(self) -> tuple[SharedMap, ...]:
        if self._maps is None:
            self._maps = read_shared_maps(self.target)
        return self._maps


def inode_of(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _mount_of(descriptor: int) -> int:
    """The mount of a descriptor. Not by device: an overlay gives files another device than folders."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as facts:
        return next(int(line.split()[1]) for line in facts if line.startswith("mnt_id:"))


def _folder(cleanup: contextlib.ExitStack, path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    cleanup.callback(os.close, descriptor)
    return descriptor


def _parse_facts(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    every = text.splitlines()
    # Nearly all have a few facts, each of them once. This runs in the pause for every descriptor, so the usual case is
    # fast.
    facts = dict([line.split(":", 1) for line in every if ":" in line])
    if len(facts) == len(every) and not facts.keys() & _REPEATED:
        return facts, ()
    return facts, tuple(line for line in every if line.partition(":")[0].partition(" ")[0] in _REPEATED)
