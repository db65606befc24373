"""epoll: which open file descriptions it watches, under which numbers, and whether it had anything to report."""

from __future__ import annotations

import dataclasses
import re
import select
import struct
from collections.abc import Mapping

from ramet.freezing.descriptors.access import Opened, ProcessAccess
from ramet.freezing.descriptors.calls import O_CLOEXEC, CallList
from ramet.freezing.descriptors.kernel import is_watched
from ramet.freezing.descriptors.recipes import Description, Epoll, EpollEntry
from ramet.freezing.descriptors.target import LINE_NUMBERS

_ENTRY = re.compile(r"tfd:\s*(\d+) events:\s*([0-9a-f]+) data:\s*([0-9a-f]+)(?:\s+pos:\S+\s+ino:([0-9a-f]+))?")
_EPOLL_CTL_ADD = 1
_EVENTS = 0x0FFF_FFFF  # without the bits that say how to report (EPOLLET, EPOLLONESHOT and others)
_ANSWER_BYTES = 12  # struct epoll_event is packed on x86-64
_MOST_ANSWERS = 1024


def resolve(access: ProcessAccess, descriptions: list[Description], opened: Mapping[int, Opened]) -> list[Description]:
    """Fill in what each epoll watches, now that all descriptions are known."""
    if not any(isinstance(each.thing, Epoll) for each in descriptions):
        return descriptions
    by_number = {place.number: index for index, each in enumerate(descriptions) for place in each.places}
    by_inode: dict[int, list[int]] = {}
    for index, first in opened.items():
        by_inode.setdefault(int(first.facts.get("ino", 0)), []).append(index)
    resolved: list[Description] = []
    for index, each in enumerate(descriptions):
        if isinstance(each.thing, Epoll):
            watched = _entries(access, opened[index], descriptions, by_number, by_inode)
            each = dataclasses.replace(each, thing=Epoll(watched, _is_quiet(access, opened[index])))
        resolved.append(each)
    return resolved


def _entries(
    access: ProcessAccess,
    epoll: Opened,
    descriptions: list[Description],
    by_number: Mapping[int, int],
    by_inode: Mapping[int, list[int]],
) -> tuple[EpollEntry, ...]:
    access.budget.watch(len(epoll.lines))
    seen: dict[int, int] = {}
    entries: list[EpollEntry] = []
    for line in epoll.lines:
        match = _ENTRY.match(line)
        if match is None:
            continue
        number, events, data = int(match[1]), int(match[2], 16), int(match[3], 16)
        # A number may have several entries, if it was closed and reused. The kernel tells them apart by their order.
        nth = seen.get(number, 0)
        seen[number] = nth + 1
        # fdinfo shows the number at registration. Usually it is still the same file; otherwise try all with the same
        # inode, and ask the kernel (KCMP_EPOLL_TFD).
        candidates = [by_number[number]] if number in by_number else []
        candidates += by_inode.get(int(match[4], 16), []) if match[4] else list(range(len(descriptions)))
        for candidate in candidates:
            first = descriptions[candidate].places[0].number
            if is_watched(access.target.pid, epoll.number, number, nth, first):
                in_place = by_number.get(number) == candidate
                # A spent one-shot entry has no events left; it needs one that is ready to be spent on again.
                ready = 0 if events & _EVENTS else _ready(access, first)
                entries.append(EpollEntry(number, events, data, candidate, in_place, ready))
                break
        else:
            access.lost.append(f"epoll {epoll.number} watches a file that only another process holds ({number})")
    return tuple(entries)


def _ready(access: ProcessAccess, number: int) -> int:
    """Which of POLLIN and POLLOUT are ready on a descriptor."""
    with access.copy(number) as copy:
        poll = select.poll()
        # poll(2) on a duplicate consumes nothing.
        poll.register(copy, select.POLLIN | select.POLLOUT)
        return sum(events for _, events in poll.poll(0)) & (select.POLLIN | select.POLLOUT)


def _is_quiet(access: ProcessAccess, epoll: Opened) -> bool:
    """Whether the epoll has nothing to report. Polling it does not consume reports."""
    with access.copy(epoll.number) as copy:
        poll = select.poll()
        poll.register(copy, select.POLLIN)
        return not poll.poll(0)


def make_epoll(script: CallList) -> int:
    return script.create("make an epoll", "epoll_create1", O_CLOEXEC)


def watch_stale(script: CallList, slot: int, thing: Epoll, slots: Mapping[int, int]) -> None:
    """Add entries whose number now belongs to another file, while the wanted numbers are still free.

    The kernel identifies an entry by number and file, so the file gets that number for a moment.
    """
    for entry in thing.watched:
        if entry.in_place or entry.number in LINE_NUMBERS:
            continue
        script.call("lend a number", "dup3", slots[entry.target], entry.number, O_CLOEXEC)
        _add(script, slot, entry, entry.events | entry.ready)
        script.call("take the number back", "close", entry.number)


def watch_all(script: CallList, each: Description, thing: Epoll) -> None:
    """Add all other entries, once the numbers are in place.

    Adding an entry reports it again if it is ready, even if it is edge-triggered (EPOLLET) and had reported that
    before. If nothing was to be reported, the reports are taken and dropped. Entries that are spent (EPOLLONESHOT) are
    added first, for something that is ready, and are spent again by that.
    """
    number = each.places[0].number
    here = [entry for entry in thing.watched if entry.in_place]
    spent = [entry for entry in here if not entry.events & _EVENTS]
    for entry in spent:
        _add(script, number, entry, entry.events | entry.ready)
    # Spend them before the others are added: their reports must not be dropped with these.
    if any(not entry.events & _EVENTS for entry in thing.watched):
        _drain(script, number, len(thing.watched))
    for entry in here:
        if entry.events & _EVENTS:
            _add(script, number, entry, entry.events)
    if thing.watched and thing.quiet:
        _drain(script, number, len(thing.watched))


def _add(script: CallList, epoll: int, entry: EpollEntry, events: int) -> None:
    record = struct.pack("<IQ", events, entry.data)
    script.call("watch a descriptor", "epoll_ctl", epoll, _EPOLL_CTL_ADD, entry.number, record)


def _drain(script: CallList, epoll: int, count: int) -> None:
    for _ in range(0, count, _MOST_ANSWERS):
        room = min(count, _MOST_ANSWERS)
        script.call("drop reports", "epoll_wait", epoll, bytes(room * _ANSWER_BYTES), room, 0, must_work=False)
