"""Reads every descriptor of a paused process. It waits for nothing, changes nothing, and leaves nothing open."""

from __future__ import annotations

import functools
import os
import re

from ramet.errors import ForkFailed
from ramet.freezing import _core
from ramet.freezing.descriptors.access import Opened, ProcessAccess
from ramet.freezing.descriptors.bounds import MOST_DESCRIPTORS, too_much
from ramet.freezing.descriptors.kernel import compare_descriptors
from ramet.freezing.descriptors.kinds import epolls, events, files, locks, pipes
from ramet.freezing.descriptors.recipes import Description, Line, NamedFile, OpenDescriptors, TableEntry, Thing
from ramet.freezing.descriptors.sockets import internet_sockets, sockets
from ramet.freezing.descriptors.target import PausedProcess

# Every pod has these, and no sandbox can replace them, so they need no closer look.
_DEVICES = frozenset((b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom"))
_NAMESPACE = re.compile(rb"(cgroup|ipc|mnt|net|pid|time|user|uts):\[\d+\]")


def read_descriptors(target: PausedProcess) -> OpenDescriptors:
    """Read all descriptors as plain data. Call it during the pause. Raises ForkFailed."""
    try:
        table = _core.descriptors(target.pid)
        plain = _read_plain(target, table)
        if plain is not None:
            return plain
        with ProcessAccess(target, table) as access:
            return _read(access)
    except (OSError, ValueError, KeyError) as error:
        raise ForkFailed(f"the sandbox cannot be copied: reading its open descriptors failed: {error!r}") from error


def _read_plain(target: PausedProcess, table: _core.Table) -> OpenDescriptors | None:
    """The fast path for a sandbox that has opened nothing, which is the usual one. None: it has something else."""
    lines = target.lines.links()
    places: dict[bytes, list[TableEntry]] = {}
    flags: dict[bytes, int] = {}
    for number, link, text in sorted(table):
        # A line may have several numbers. A device may not: two numbers could be one description or two.
        if text is None or (link not in lines and (link not in _DEVICES or link in places)):
            return None
        # "pos:\t0\nflags:\t02100002\n...": the kernel has kept this order for twenty years. Anything else takes the
        # slow path.
        words = text.split(None, 4)
        if len(words) < 4 or words[2] != "flags:" or "lock:" in text:
            return None
        opened = int(words[3], 8)
        places.setdefault(link, []).append(TableEntry(number, bool(opened & os.O_CLOEXEC)))
        flags[link] = opened & ~os.O_CLOEXEC
    descriptions = []
    for link, numbers in places.items():
        thing = Line(lines[link]) if link in lines else NamedFile(link, seekable=False, expected=True)
        descriptions.append(Description(tuple(numbers), flags[link], 0, thing, ()))
    return OpenDescriptors(target.pid_inside, tuple(descriptions), ()) if descriptions else None


def _read(access: ProcessAccess) -> OpenDescriptors:
    numbers = access.numbers()
    if not numbers:
        raise ForkFailed("the sandbox cannot be copied: it has closed every descriptor, or has ended")
    if len(numbers) > MOST_DESCRIPTORS:
        raise too_much(f"it has {len(numbers)} descriptors open, at most {MOST_DESCRIPTORS} can be carried over")
    lines = access.target.lines.links()
    groups: list[list[Opened]] = []
    others: dict[object, list[Opened]] = {}
    own: dict[int, list[Opened]] = {}
    for number in numbers:
        opened = access.opened(number)
        line = lines.get(opened.link)
        if line is not None:
            own.setdefault(line, []).append(opened)
        else:
            others.setdefault(_might_be_same(opened), []).append(opened)
    for bucket in others.values():
        groups.extend(_same_descriptions(access.target.pid, bucket))
    descriptions = [_describe(group, Line(line)) for line, group in own.items()]
    first_other = len(descriptions)
    descriptions += [_describe(group, _read_thing(access, group[0])) for group in groups]
    opened_by_index = {first_other + index: group[0] for index, group in enumerate(groups)}
    # After all sockets are known: data in flight belongs to the peer's queue, and epolls refer to other descriptions.
    descriptions = internet_sockets.read_under_way(access, descriptions, opened_by_index)
    resolved = epolls.resolve(access, descriptions, opened_by_index)
    return OpenDescriptors(access.target.pid_inside, tuple(resolved), tuple(access.lost))


def _might_be_same(opened: Opened) -> object:
    """A key that is equal for two numbers of one open file description.

    Two descriptions may have the same key as well.
    """
    facts = opened.facts
    identity = facts.get("ino"), facts.get("mnt_id"), facts.get("eventfd-id")
    return opened.link, opened.status_flags, facts.get("pos"), identity


def _same_descriptions(pid: int, bucket: list[Opened]) -> list[list[Opened]]:
    """Group numbers of the same open file description, by asking the kernel (kcmp).

    Only look-alikes are compared, because each question is a system call. kcmp gives an order, so sorting needs few of
    them.
    """
    if len(bucket) == 1:
        return [bucket]

    def compare(one: Opened, other: Opened) -> int:
        return compare_descriptors(pid, one.number, other.number)

    ordered = sorted(bucket, key=functools.cmp_to_key(compare))
    groups = [[ordered[0]]]
    for opened in ordered[1:]:
        if compare(groups[-1][0], opened) == 0:
            groups[-1].append(opened)
        else:
            groups.append([opened])
    return groups


def _describe(group: list[Opened], thing: Thing) -> Description:
    first = group[0]
    return Description(
        places=tuple(TableEntry(each.number, bool(each.flags & os.O_CLOEXEC)) for each in group),
        flags=first.status_flags,
        position=first.position,
        thing=thing,
        locks=locks.read_locks(first.lines) if first.lines else (),
    )


def _read_thing(access: ProcessAccess, opened: Opened) -> Thing:
    link = opened.link
    if link in _DEVICES:
        return NamedFile(link, seekable=False, expected=True)
    if link.startswith(b"/"):
        return files.read_file(access, opened)
    if opened.flags & os.O_PATH:
        return access.dead(opened)  # an O_PATH descriptor of something without a path
    if link.startswith(b"pipe:["):
        return pipes.read_pipe(access, opened)
    if link.startswith(b"socket:["):
        return sockets.read_socket(access, opened)
    if link.startswith((b"anon_inode:", b"pidfd:")):
        return events.read_event(access, opened)
    if _NAMESPACE.fullmatch(link):
        return files.read_namespace(access, opened)
    return access.dead(opened)
