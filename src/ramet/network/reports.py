"""Reports to the engine about connections: an entry for each attempt, and from time to time how many bytes it carried.

The first is sent at once, the following in short batches. If a sandbox makes attempts faster than the engine can take,
entries are dropped and counted: it must not be able to fill the memory of this process or of the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import field

from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.specs import Kind

_BATCH_SECONDS = 0.1
_ENTRIES_PER_BATCH = 200  # per sandbox: 2000 a second
_OPENED_PER_BATCH = 5000  # the same for attempts that led to a connection
_TEXT_AT_MOST = 300

_numbers = itertools.count(1)


@dataclass(slots=True)
class ConnectionReport:
    """One attempted connection. ``sent`` and ``received`` are as seen from the sandbox."""

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
    told: bool = True  # whether the engine knows the current state

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
    """The reports of one sandbox. ``send`` takes messages for the engine; False: it is busy, try again later."""

    def __init__(self, sandbox: int, send: Callable[[Sequence[dict[str, object]], bool], bool]) -> None:
        self._sandbox = sandbox
        self._send = send
        self._new: list[ConnectionReport] = []
        self._changed: dict[int, ConnectionReport] = {}
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
    ) -> ConnectionReport:
        entry = ConnectionReport(next(_numbers), kind, _shown(host), port, allowed, rule, reason, address, open)
        # Connections that were made take precedence over refused attempts, of which there may be any number.
        if len(self._new) < (_OPENED_PER_BATCH if open else _ENTRIES_PER_BATCH):
            self._new.append(entry)
        else:
            self._dropped += 1
            # 0 marks an entry that the engine never heard of, so later changes to it are not reported either.
            entry.number = 0
        self._plan()
        return entry

    def changed(self, entry: ConnectionReport) -> None:
        if entry.told and entry.number:
            entry.told = False
            self._changed[entry.number] = entry
            self._plan()

    def flush(self, now: bool = False) -> None:
        """Send everything. ``now``: even if the engine is busy."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        messages = [entry.header(self._sandbox) for entry in self._new]
        messages += [entry.counted(self._sandbox) for entry in self._changed.values()]
        if self._dropped:
            messages.append({"say": "dropped", "id": self._sandbox, "count": self._dropped})
        # Also after a failed try, or `_plan` would schedule the next one at once and spin.
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
    """Replace control characters: a program chooses the host, and people read logs on terminals."""
    return "".join(letter if letter.isprintable() else "?" for letter in host[:_TEXT_AT_MOST])
