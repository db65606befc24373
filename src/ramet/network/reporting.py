"""What the engine is told of connections: one entry for each that was tried, and now and then how much went over it.

The first one is told at once, what follows within a moment in batches. A sandbox that tries faster than the engine can
hear has entries dropped and counted: neither this process nor the engine may be filled up by it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ramet.protocol.network import Kind

_BATCH_SECONDS = 0.1
_ENTRIES_PER_BATCH = 200  # of one sandbox: 2000 a second
_OPENED_PER_BATCH = 5000  # also of those that were connected to
_TEXT_AT_MOST = 300

_numbers = itertools.count(1)


@dataclass(slots=True)
class Entry:
    """A connection that was tried. ``sent`` and ``received`` are of the sandbox's side of things."""

    number: int
    kind: Kind
    host: str
    port: int
    allowed: bool
    rule: str | None
    reason: str | None = None
    address: str | None = None
    open: bool = False
    sent: int = 0
    received: int = 0
    time: float = field(default_factory=time.time)
    told: bool = True  # what has changed since was said, too

    def header(self, sandbox: int) -> dict[str, object]:
        return {
            "say": "tried",
            "id": sandbox,
            "entry": self.number,
            "time": self.time,
            "kind": self.kind,
            "host": self.host,
            "port": self.port,
            "allowed": self.allowed,
            "rule": self.rule,
            "reason": self.reason,
            "address": self.address,
            "open": self.open,
        }

    def counted(self, sandbox: int) -> dict[str, object]:
        return {
            "say": "counted",
            "id": sandbox,
            "entry": self.number,
            "sent": self.sent,
            "received": self.received,
            "open": self.open,
            "allowed": self.allowed,
            "reason": self.reason,
        }


class Reports:
    """Of one sandbox. ``send`` takes messages for the engine, now or (False) when that is not busy any more."""

    def __init__(self, sandbox: int, send: Callable[[Sequence[dict[str, object]], bool], bool]) -> None:
        self._sandbox = sandbox
        self._send = send
        self._new: list[Entry] = []
        self._changed: dict[int, Entry] = {}
        self._dropped = 0
        self._timer: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._told_at = self._loop.time() - _BATCH_SECONDS

    def tried(
        self,
        kind: Kind,
        host: str,
        port: int,
        allowed: bool,
        rule: str | None,
        reason: str | None = None,
        address: str | None = None,
        open: bool = False,
    ) -> Entry:
        entry = Entry(next(_numbers), kind, _shown(host), port, allowed, rule, reason, address, open)
        # Those that were made are told rather than those that were refused, of which there may be any number.
        if len(self._new) < (_OPENED_PER_BATCH if open else _ENTRIES_PER_BATCH):
            self._new.append(entry)
        else:
            self._dropped += 1
            entry.number = 0
        self._plan()
        return entry

    def changed(self, entry: Entry) -> None:
        if entry.told and entry.number:
            entry.told = False
            self._changed[entry.number] = entry
            self._plan()

    def flush(self, now: bool = False) -> None:
        """Say all that is known; ``now``: also if the engine is busy."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        messages = [entry.header(self._sandbox) for entry in self._new]
        messages += [entry.counted(self._sandbox) for entry in self._changed.values()]
        if self._dropped:
            messages.append({"say": "dropped", "id": self._sandbox, "count": self._dropped})
        self._told_at = self._loop.time()
        if messages and not self._send(messages, now):
            self._plan()
            return
        for entry in self._changed.values():
            entry.told = True
        self._new, self._changed, self._dropped = [], {}, 0

    def _plan(self) -> None:
        if self._timer is not None:
            return
        wait = self._told_at + _BATCH_SECONDS - self._loop.time()
        self._timer = self._loop.call_later(wait, self.flush) if wait > 0 else self._loop.call_soon(self.flush)


def _shown(host: str) -> str:
    """A program chooses it: whoever reads a log on a terminal must not get line ends and control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in host[:_TEXT_AT_MOST])
