"""Pipes and FIFOs: what is in them is copied without being taken out."""

from __future__ import annotations

import contextlib
import fcntl
import os

from ramet.freezing.descriptors.access import Access, Opened
from ramet.freezing.descriptors.bounds import MOST_QUEUE_BYTES, too_much
from ramet.freezing.descriptors.calls import Script
from ramet.freezing.descriptors.kernel import duplicate_contents
from ramet.freezing.descriptors.recipes import Description, PipeEnd

_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_FIONREAD = 0x541B
_USUAL_CAPACITY = 65_536
_SURE_TO_FIT = 4096  # even when the kernel gives a new pipe only two pages, because its owner has so many pipes
_O_DIRECT, _O_NONBLOCK = 0o40000, 0o4000


def read_pipe(access: Access, opened: Opened) -> PipeEnd:
    return _read(access, opened, opened.link, None)


def read_fifo(access: Access, opened: Opened, path: bytes | None) -> PipeEnd:
    """A FIFO that no path leads to any more is a pipe."""
    status = access.status(opened.number)
    return _read(access, opened, b"fifo %d %d" % (status.st_dev, status.st_ino), path)


def _read(access: Access, opened: Opened, pipe: bytes, path: bytes | None) -> PipeEnd:
    with access.copy(opened.number) as copy:
        capacity = fcntl.fcntl(copy, _F_GETPIPE_SZ)
        # If nobody here can read it, it ends elsewhere, and a copy has no use for what is in it.
        wanted = opened.can_read and pipe not in access.pipes_read
        contents: tuple[bytes, ...] = ()
        if wanted:
            access.pipes_read.add(pipe)
            waiting = int.from_bytes(fcntl.ioctl(copy, _FIONREAD, bytes(4)), "little")
            if waiting:
                access.budget.spend(waiting, f"what waits in pipe {opened.number}", MOST_QUEUE_BYTES)
                contents = _contents(copy, capacity, waiting)
    return PipeEnd(pipe, path, capacity, contents)


def _contents(pipe: int, capacity: int, expected: int) -> tuple[bytes, ...]:
    """What can be read, as it would be read: a pipe of packets (O_DIRECT) gives one at a time."""
    ours, into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(into, _F_GETPIPE_SZ) < capacity:
            # Refused when the engine's user has too many pages in pipes. What is in this one may fit all the same.
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


def make_pipe(script: Script, ends: list[tuple[Description, PipeEnd]]) -> list[int]:
    """Slots for all descriptions of one pipe; an end that is nowhere among them is closed."""
    thing = ends[0][1]
    contents = next((end.contents for _, end in ends if end.contents), ())
    packets = len(contents) > 1
    if thing.path is None:
        reading, writing = script.create_pair("make a pipe", "pipe2", bytes(8), _O_DIRECT if packets else 0)
    else:
        # Both directions in one: opening it so never waits, and keeps the contents while the others open.
        reading = script.create(f"open {os.fsdecode(thing.path)!r}", "open", thing.path + b"\0", os.O_RDWR, 0)
        writing = reading
        if packets:
            script.set_flags("keep packets apart", writing, _O_DIRECT)
    _fill(script, writing, thing.capacity, contents)
    unused = {reading, writing}
    slots: list[int] = []
    for each, _ in ends:
        access = each.flags & os.O_ACCMODE
        ready = {os.O_RDONLY: reading, os.O_WRONLY: writing}.get(access)
        if ready is not None and ready in unused and thing.path is None:
            unused.discard(ready)
            slot = ready
        else:
            # /proc/self/fd: one more description of the same pipe, whatever became of its path.
            path = b"/proc/self/fd/%d\0" % reading
            slot = script.create("open a pipe once more", "open", path, access | _O_NONBLOCK, 0)
        script.set_flags("set a pipe's flags", slot, each.flags)
        slots.append(slot)
    for slot in unused:
        script.drop(slot)
    return slots


def _fill(script: Script, slot: int, capacity: int, contents: tuple[bytes, ...]) -> None:
    if capacity != _USUAL_CAPACITY or sum(map(len, contents)) > _SURE_TO_FIT:
        script.call("set a pipe's capacity", "fcntl", slot, _F_SETPIPE_SZ, capacity)
    for part in contents:
        script.call("fill a pipe", "write", slot, part, len(part))
