"""Checks each kind of descriptor of an image that another store wrote: counts, sizes, flags and options."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any

from ramet.freezing.descriptors.bounds import (
    MOST_BYTES,
    MOST_EXTENTS,
    MOST_MESSAGES,
    MOST_QUEUE_BYTES,
    MOST_TERMINALS,
)
from ramet.freezing.descriptors.recipes import (
    Dead,
    Epoll,
    EventCounter,
    FileWatch,
    InternetSocket,
    Line,
    Message,
    NamedFile,
    NamelessFile,
    NamelessFolder,
    OtherSocket,
    PipeEnd,
    ProcessHandle,
    ProcFile,
    SignalQueue,
    SocketFacts,
    TerminalRecipe,
    Thing,
    Timer,
    UnixPath,
    UnixSocket,
)
from ramet.freezing.descriptors.sockets.socket_options import KEPT_OPTIONS
from ramet.freezing.images.moving.values import check_ranges, demand, is_path, is_pid

_CLOCKS = frozenset((0, 1, 7))  # REALTIME, MONOTONIC, BOOTTIME; the others take a capability
_NETLINK = frozenset((0, 4, 15, 16))  # ROUTE, SOCK_DIAG, KOBJECT_UEVENT, GENERIC
_TYPES = frozenset((socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET))
_WORD = 1 << 64
_LONGEST = 1 << 62  # of a file, and nanoseconds of a clock
_PIPE_BYTES = (4096, 1 << 20)  # what a process without capabilities may ask for
_EPOLL_EVENTS = 0xFFFF_FFFF & ~(1 << 29)  # EPOLLWAKEUP takes a capability
_SEALS = 0x3F
_WINDOW_BYTES, _SETTINGS_BYTES = 8, 44


class Spent:
    """The bytes of all queues and nameless files together: they pass through the engine's memory."""

    def __init__(self) -> None:
        self._left = MOST_BYTES

    def spend(self, count: int, most: int = MOST_BYTES) -> None:
        self._left -= count
        demand(count <= most and self._left >= 0, "more buffered data than can be copied")


def check_thing(thing: Thing, spent: Spent) -> None:
    _CHECKS[type(thing)](thing, spent)


def _nothing(_thing: object, _spent: Spent) -> None:
    """Nothing in it is used."""


def _file(thing: NamedFile, _: Spent) -> None:
    demand(is_path(thing.path), "an open file without a path")


def _proc(thing: ProcFile, _: Spent) -> None:
    below = thing.below
    demand(below == b"" or (is_path(below) and b".." not in below.split(b"/")), "a file of /proc about another process")


def _nameless(thing: NamelessFile, spent: Spent) -> None:
    demand(len(thing.name) < 249 and b"\0" not in thing.name, "the name of a file in memory")
    demand(thing.folder is None or is_path(thing.folder), "the folder of a deleted file")
    demand(0 <= thing.mode <= 0o1777, f"the mode {thing.mode:o} of a deleted file")
    demand(0 <= thing.size < _LONGEST, f"a deleted file of {thing.size} bytes")
    demand(thing.seals is None or 0 <= thing.seals <= _SEALS, "unknown seals")
    demand(len(thing.extents) <= MOST_EXTENTS, "a deleted file with too many holes")
    before = 0
    for extent in thing.extents:
        end = extent.offset + len(extent.data)
        demand(bool(extent.data) and before <= extent.offset and end <= thing.size, "data outside of a deleted file")
        spent.spend(len(extent.data))
        before = end
    check_ranges(thing.ranges)


def _pipe(thing: PipeEnd, spent: Spent) -> None:
    demand(len(thing.pipe) <= 4096 and (thing.path is None or is_path(thing.path)), "an unknown pipe")
    demand(_PIPE_BYTES[0] <= thing.capacity <= _PIPE_BYTES[1], f"a pipe for {thing.capacity} bytes")
    held = sum(map(len, thing.contents))
    demand(held <= thing.capacity and len(thing.contents) <= MOST_MESSAGES, "more in a pipe than it holds")
    spent.spend(held)


def _counter(thing: EventCounter, _: Spent) -> None:
    demand(0 <= thing.count < _WORD - 1, "the count of an eventfd")


def _timer(thing: Timer, _: Spent) -> None:
    demand(thing.clock in _CLOCKS, f"a timer of clock {thing.clock}")
    demand(0 <= thing.ticks < _WORD, "the ticks of a timer")
    demand(0 <= thing.deadline < _LONGEST and 0 <= thing.interval < _LONGEST, "the time of a timer")


def _signals(thing: SignalQueue, _: Spent) -> None:
    demand(0 <= thing.mask < _WORD, "the mask of a signalfd")


def _process(thing: ProcessHandle, _: Spent) -> None:
    demand(thing.pid == 0 or is_pid(thing.pid), f"a handle of process {thing.pid}")


def _epoll(thing: Epoll, _: Spent) -> None:
    for entry in thing.watched:
        demand(not entry.events & ~_EPOLL_EVENTS and entry.events >= 0, "the events of an epoll")
        demand(0 <= entry.data < _WORD and not entry.ready & ~5, "an entry of an epoll")


def _facts(facts: SocketFacts, families: Sequence[int], protocols: Sequence[int]) -> None:
    demand(facts.family in families and facts.type in _TYPES | {socket.SOCK_RAW}, f"a socket of family {facts.family}")
    demand(facts.type != socket.SOCK_RAW or facts.family == socket.AF_NETLINK, "a raw socket")
    demand(facts.protocol in protocols, f"a socket of protocol {facts.protocol}")
    demand(len(facts.options) <= len(KEPT_OPTIONS), "too many options of a socket")
    for each in facts.options:
        size = KEPT_OPTIONS.get((each.level, each.option))
        demand(size == len(each.value), f"option {each.option} of level {each.level} of a socket")


def _messages(messages: Sequence[Message], spent: Spent) -> None:
    demand(len(messages) <= MOST_MESSAGES, f"{len(messages)} datagrams in a socket")
    for message in messages:
        spent.spend(len(message.data), MOST_QUEUE_BYTES)
        if isinstance(message.source, tuple):
            _address(message.source)
        else:
            demand(len(message.source or b"") <= 108, "the sender of a datagram")


def _unix(thing: UnixSocket, spent: Spent) -> None:
    _facts(thing.facts, (socket.AF_UNIX,), (0,))
    demand(thing.name is None or len(thing.name) <= 108, "the name of a unix socket")
    if thing.path is not None:
        _unix_path(thing.path)
    demand(0 <= thing.backlog < 1 << 31 and len(thing.waiting) <= MOST_MESSAGES, "the queue of a unix socket")
    demand(0 <= thing.shutdown <= 3, "a unix socket that is shut down in another way")
    spent.spend(len(thing.stream), MOST_QUEUE_BYTES)
    _messages(thing.messages, spent)


def _unix_path(path: UnixPath) -> None:
    demand(is_path(path.folder) and 0 <= path.mode <= 0o777, "the folder of a unix socket")
    is_name = path.name not in (b"", b".", b"..") and not {0, ord("/")} & set(path.name) and len(path.name) < 256
    demand(is_name, "the name of a unix socket")


def _internet(thing: InternetSocket, spent: Spent) -> None:
    _facts(thing.facts, (socket.AF_INET, socket.AF_INET6), (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP))
    demand(thing.facts.type != socket.SOCK_SEQPACKET, "an internet socket of another type")
    _address(thing.local)
    if thing.remote is not None:
        _address(thing.remote)
    demand(0 <= thing.backlog < 1 << 31 and 0 <= thing.waiting < 1 << 31, "the queue of a socket")
    demand(0 <= thing.state <= 12, f"a connection in state {thing.state}")
    spent.spend(len(thing.received), MOST_QUEUE_BYTES)
    _messages(thing.messages, spent)


def _address(address: tuple[str, int]) -> None:
    host, port = address
    try:
        ipaddress.ip_address(host[:64])
    except ValueError:
        demand(False, f"the address {host!r:.40}")
    demand(0 <= port <= 65_535, f"the port {port}")


def _other(thing: OtherSocket, _: Spent) -> None:
    _facts(thing.facts, (socket.AF_NETLINK,), tuple(_NETLINK))


def _terminal(thing: TerminalRecipe, _: Spent) -> None:
    demand(0 <= thing.index < MOST_TERMINALS, f"terminal {thing.index}")
    sizes = len(thing.settings), len(thing.window)
    demand(sizes == (_SETTINGS_BYTES, _WINDOW_BYTES), "the settings of a terminal")


_CHECKS: dict[type, Callable[[Any, Spent], None]] = {
    Line: _nothing,
    NamedFile: _file,
    ProcFile: _proc,
    NamelessFile: _nameless,
    NamelessFolder: _nothing,
    PipeEnd: _pipe,
    EventCounter: _counter,
    Timer: _timer,
    SignalQueue: _signals,
    FileWatch: _nothing,
    ProcessHandle: _process,
    Epoll: _epoll,
    UnixSocket: _unix,
    InternetSocket: _internet,
    OtherSocket: _other,
    TerminalRecipe: _terminal,
    Dead: _nothing,
}
