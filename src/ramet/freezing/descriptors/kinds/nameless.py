"""Regular files without a path: deleted, made with O_TMPFILE, or in memory. Their contents are copied."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from ramet.freezing.descriptors.access import Opened, ProcessAccess, inode_of
from ramet.freezing.descriptors.bounds import MOST_EXTENTS, too_much
from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.maps import covers
from ramet.freezing.descriptors.recipes import Dead, Description, Extent, Inode, Memory, NamelessFile, Ranges
from ramet.isolation.kernel.syscalls import file_system_type

_MEMORY_FILE = b"/memfd:"
_DELETED = b" (deleted)"
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_O_TMPFILE = 0o20200000
_CHUNK_BYTES = 1 << 20
_MESSAGE_QUEUES = 0x19800202  # MQUEUE_MAGIC
_MODE_BITS = 0o1777  # a sandbox cannot set the set-id bits
_READ_FROM_MAP_BYTES = 1 << 20  # smaller files are read in any case
_SMALL_HOLE_BYTES = 256 << 10  # a smaller hole is filled: another write would cost as much
_MOST_RANGES = 2048  # each is a call in the frozen copy, and one in each sandbox made from it


def read_nameless(access: ProcessAccess, opened: Opened, status: os.stat_result, folder: bytes) -> NamelessFile | Dead:
    in_memory = opened.link.startswith(_MEMORY_FILE)
    if not in_memory and _is_message_queue(access, opened):
        return access.dead(opened)
    inode, memory = inode_of(status), (status.st_ino, opened.link)
    # The copy has the pages of a mapping anyway, so they need not pass through the engine.
    mapped = status.st_size > _READ_FROM_MAP_BYTES and covers(access.shared_maps(), memory, status.st_size)
    known = mapped or inode in access.nameless_read
    access.nameless_read.add(inode)
    return NamelessFile(
        inode=inode,
        memory=memory,
        name=opened.link.removeprefix(_MEMORY_FILE).removesuffix(_DELETED) if in_memory else b"",
        folder=None if in_memory else folder,
        linkable=opened.flags & _O_TMPFILE == _O_TMPFILE,
        mode=stat.S_IMODE(status.st_mode) & _MODE_BITS,
        size=status.st_size,
        extents=() if known else _read_extents(access, opened),
        seals=_seals(access, opened) if in_memory else None,
        ranges=_read_ranges(access, opened, memory, status.st_size),
    )


def _is_message_queue(access: ProcessAccess, opened: Opened) -> bool:
    """Whether it is a POSIX message queue, which looks like a regular file whose content describes the queue."""
    with access.copy(opened.number) as copy:
        return file_system_type(copy) == _MESSAGE_QUEUES


def _seals(access: ProcessAccess, opened: Opened) -> int:
    with access.copy(opened.number) as copy:
        try:
            return fcntl.fcntl(copy, _F_GET_SEALS)
        except OSError:  # a deleted file whose name only looks like a memfd's
            return 0


def _read_ranges(access: ProcessAccess, opened: Opened, memory: Memory, size: int) -> Ranges | None:
    """Where a file that is also mapped has data: only that is copied of the mapping.

    None: not needed, or too many ranges.
    """
    if size <= _READ_FROM_MAP_BYTES or not any(each.memory == memory for each in access.shared_maps()):
        return None
    ranges: list[tuple[int, int]] = []
    with access.reopened(opened.number) as file:
        end = 0
        for _ in range(MOST_EXTENTS):
            try:
                start = os.lseek(file, end, os.SEEK_DATA)
                end = os.lseek(file, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole follows
                    return tuple(ranges)
                raise
            if ranges and start - ranges[-1][1] < _SMALL_HOLE_BYTES:
                ranges[-1] = (ranges[-1][0], end)
            elif len(ranges) < _MOST_RANGES:
                ranges.append((start, end))
            else:
                return None
    return None


def _read_extents(access: ProcessAccess, opened: Opened) -> tuple[Extent, ...]:
    """Read the data without holes, through an open file description of our own: the owner's keeps its offset."""
    extents: list[Extent] = []
    with access.reopened(opened.number) as file:
        position = 0
        while True:
            try:
                start = os.lseek(file, position, os.SEEK_DATA)
                position = os.lseek(file, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole follows
                    return tuple(extents)
                raise
            access.budget.spend(position - start, f"the deleted file {os.fsdecode(opened.link)!r}")
            while start < position:
                data = os.pread(file, min(_CHUNK_BYTES, position - start), start)
                if not data:
                    return tuple(extents)
                extents.append(Extent(start, data))
                start += len(data)
            if len(extents) > MOST_EXTENTS:
                raise too_much(f"the deleted file {os.fsdecode(opened.link)!r} has too many holes")


class NamelessMaker:
    """Makes each nameless inode once, and a description of it for each that there was."""

    def __init__(self, script: CallList) -> None:
        self._script = script
        self._made: dict[Inode, int] = {}
        self._seals: dict[Inode, int] = {}
        # The one to be opened with O_TMPFILE: only that description can be given a name later.
        self._first: dict[Inode, Description] = {}

    def make_inodes(self, descriptions: list[tuple[Description, NamelessFile]]) -> dict[Inode, int]:
        """Make the inodes and fill them. Returns slots for mapping them; seals are not set yet."""
        extents: dict[Inode, tuple[Extent, ...]] = {}
        for each, thing in descriptions:
            # O_TMPFILE needs write access, so this is only possible with a description that has it.
            if thing.linkable and each.flags & os.O_ACCMODE == os.O_RDWR:
                self._first.setdefault(thing.inode, each)
            extents[thing.inode] = extents.get(thing.inode) or thing.extents
            self._seals[thing.inode] = self._seals.get(thing.inode, 0) | (thing.seals or 0)
        for _, thing in descriptions:
            if thing.inode not in self._made:
                self._made[thing.inode] = self._make(thing, extents[thing.inode], len(self._made))
        return self._made

    def make_description(self, each: Description, thing: NamelessFile) -> int:
        """Open an inode once more, through /proc, with the flags and offset of one description."""
        name = f"open the nameless file {os.fsdecode(thing.name)!r}"
        if self._first.get(thing.inode) is each:
            slot = self._script.copy(name, self._made[thing.inode])
            self._script.set_flags(name, slot, each.flags)
        else:
            # Through /proc, because the file has no path. This gives a new description with its own offset and flags.
            path = b"/proc/self/fd/%d\0" % self._made[thing.inode]
            slot = self._script.create(name, "open", path, each.flags & ~(_O_TMPFILE | os.O_NOFOLLOW), 0)
        if each.position:
            self._script.call(name, "lseek", slot, each.position, os.SEEK_SET)
        return slot

    def seal(self) -> None:
        """Set the seals, now that everything is written, and drop the slots."""
        for inode, slot in self._made.items():
            if self._seals[inode]:
                self._script.call("seal a file in memory", "fcntl", slot, _F_ADD_SEALS, self._seals[inode])
            self._script.drop(slot)

    def _make(self, thing: NamelessFile, extents: tuple[Extent, ...], number: int) -> int:
        script, name = self._script, f"make the nameless file {os.fsdecode(thing.name)!r}"
        if thing.folder is None:
            slot = script.create(name, "memfd_create", thing.name + b"\0", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
        elif thing.linkable:
            slot = script.create(name, "open", thing.folder + b"\0", _O_TMPFILE | os.O_RDWR, 0o600)
        else:
            # Not O_TMPFILE, which overlays of older kernels do not support.
            path = thing.folder.rstrip(b"/") + b"/.ramet-deleted-%d\0" % number
            slot = script.create(name, "open", path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            script.call(name, "unlink", path)
        script.call(name, "ftruncate", slot, thing.size)
        for extent in extents:
            script.write_all(name, slot, extent.data, extent.offset)
        script.call(name, "fchmod", slot, thing.mode)
        return slot
