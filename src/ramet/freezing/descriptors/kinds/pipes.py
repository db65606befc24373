"""Pipes and FIFOs: their contents are copied without being taken out."""

from __future__ import annotations

import contextlib
import fcntl
import os

from ramet.freezing.descriptors.access import Opened, ProcessAccess
from ramet.freezing.descriptors.bounds import MOST_QUEUE_BYTES, too_much
from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.kernel import duplicate_contents
from ramet.freezing.descriptors.recipes import Description, PipeEnd

_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_FIONREAD = 0x541B
_USUAL_CAPACITY = 65_536
_SURE_TO_FIT = 4096  # even in a pipe of two pages, which the kernel makes for a user with too many pipes
_O_DIRECT, _O_NONBLOCK = 0o40000, 0o4000


def read_pipe(access: ProcessAccess, opened: Opened) -> PipeEnd:
    return _read(access, opened, opened.link, None)


def read_fifo(access: ProcessAccess, opened: Opened, path: bytes | None) -> PipeEnd:
    """Read a FIFO. One that no path leads to any more is treated as a pipe."""
    status = access.status(opened.number)
    return _read(access, opened, b"fifo %d %d" % (status.st_dev, status.st_ino), path)


def _read(access: ProcessAccess, opened: Opened, pipe: bytes, path: bytes | None) -> PipeEnd:
    with access.copy(opened.number) as copy:
        capacity = fcntl.fcntl(copy, _F_GETPIPE_SZ)
        # If this process cannot read it, its reader is elsewhere, and a copy has no use for the contents.
        wanted = opened.can_read and pipe not in access.pipes_read
        contents: tuple[bytes, ...] = ()
        if wanted:
            access.pipes_read.add(pipe)
            # Every process of the pod is stopped, so the contents cannot change meanwhile.
            waiting = int.from_bytes(fcntl.ioctl(copy, _FIONREAD, bytes(4)), "little")
            if waiting:
                access.budget.spend(waiting, f"what waits in pipe {opened.number}", MOST_QUEUE_BYTES)
                contents = _contents(copy, capacity, waiting)
    return PipeEnd(pipe, path, capacity, contents)


def _contents(pipe: int, capacity: int, expected: int) -> tuple[bytes, ...]:
    """The contents as they would be read: a packet pipe (O_DIRECT) returns one packet at a time."""
    # tee(2) copies into another pipe, so one of our own is needed.
    ours, into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(into, _F_GETPIPE_SZ) < capacity:
            # Refused when the engine's user has too many pages in pipes. The contents may fit all the same.
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(into, _F_SETPIPE_SZ, capacity)
        if duplicate_contents(pipe, into, expected) != expected:
            hint = "raise /proc/sys/fs/pipe-user-pages-soft, or close pipes"
            raise too_much("the contents of a pipe could not be copied whole", hint)
        parts: list[bytes] = []
        while expected > 0:
            parts.append(os.read(ours, expected))
            expected -= len(parts[-1])
        return tuple(parts)
    finally:
        os.close(ours)
        os.close(into)


def make_pipe(script: CallList, ends: list[tuple[Description, PipeEnd]]) -> list[int]:
    """Make one pipe. Returns slots for all its descriptions; an end that has none is closed."""
    thing = ends[0][1]
    contents = next((end.contents for _, end in ends if end.contents), ())
    # Several parts mean that the original kept packets apart.
    packets = len(contents) > 1
    if thing.path is None:
        reading, writing = script.create_pair("make a pipe", "pipe2", bytes(8), _O_DIRECT if packets else 0)
    else:
        # O_RDWR opens a FIFO without waiting for the other side, and keeps its contents while the others are opened.
        reading = script.create(f"open {os.fsdecode(thing.path)!r}", "open", thing.path + b"\0", os.O_RDWR, 0)
        writing = reading
        if packets:
            script.set_flags("keep packets apart", writing, _O_DIRECT)
    _fill(script, writing, thing.capacity, contents)
    unused = {reading, writing}
    slots: list[int] = []
    for each, _ in ends:
        # An end made above can be used once, by the first description of that direction. Others are opened anew.
        access = each.flags & os.O_ACCMODE
        ready = {os.O_RDONLY: reading, os.O_WRONLY: writing}.get(access)
        if ready is not None and ready in unused and thing.path is None:
            unused.discard(ready)
            slot = ready
        else:
            # Through /proc: another description of the same pipe, whatever became of its path. O_NONBLOCK, so that it
            # never waits.
            path = b"/proc/self/fd/%d\0" % reading
            slot = script.create("open a pipe once more", "open", path, access | _O_NONBLOCK, 0)
        script.set_flags("set a pipe's flags", slot, each.flags)
        slots.append(slot)
    for slot in unused:
        script.drop(slot)
    return slots


def _fill(script: CallList, slot: int, capacity: int, contents: tuple[bytes, ...]) -> None:
    if capacity != _USUAL_CAPACITY or sum(map(len, contents)) > _SURE_TO_FIT:
        script.call("set a pipe's capacity", "fcntl", slot, _F_SETPIPE_SZ, capacity)
    for part in contents:
        script.call("fill a pipe", "write", slot, part, len(part))
