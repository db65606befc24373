"""Lifetimes: when a sandbox ends by itself, and the record of one that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import time
from typing import Literal

from ramet.errors import SandboxClosed
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Lifetime

Cause = Literal["closed", "timeout", "idle", "merged"]


def now_ms() -> int:
    return int(time() * 1000)


@dataclass(slots=True)
class Tombstone:
    """The record of a sandbox that has ended. ``unkept``: why its state could not be kept, if it was persistent."""

    owner: str
    cause: Cause
    message: str
    ended_ms: int
    unkept: str | None = None

    def error(self) -> SandboxClosed:
        return SandboxClosed(self.message, details={"cause": self.cause, "ended_ms": self.ended_ms})


class Tombstones:
    """The tombstones of an engine, by the ids of the sandboxes. Beyond ``at_most``, the oldest is forgotten."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._by_id: dict[str, Tombstone] = {}

    def add(self, sandbox_id: str, tombstone: Tombstone) -> None:
        self._by_id[sandbox_id] = tombstone
        if len(self._by_id) > self._at_most:
            del self._by_id[next(iter(self._by_id))]

    def find(self, sandbox_id: str, owner: str | None) -> Tombstone | None:
        found = self._by_id.get(sandbox_id)
        return None if found is None or owner not in (None, found.owner) else found


class Clock:
    """The lifetime of one sandbox, which owns it and says whether it is ``busy``.

    A cell only writes down the time: the timer stays where it is, and checks when it rings whether it is due.
    """

    def __init__(self, lifetime: Lifetime, busy: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy = busy
        self._on_due: Callable[[Cause, str], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.created_ms = now_ms()
        self._created = self._used = self._loop.time()
        self._idle_seconds = lifetime.idle_timeout_seconds
        self._sleep_seconds: float | None = None  # without use, after which it hibernates
        self._asleep: Callable[[], bool] = lambda: False
        self._on_sleep: Callable[[], None] = lambda: None
        self._tried_at = 0.0  # to hibernate
        self._deadline: float | None = None
        self.expires_ms: int | None = None
        if lifetime.timeout_seconds is not None:
            self._end_after(lifetime.timeout_seconds)

    def start(self, on_due: Callable[[Cause, str], None]) -> None:
        """Start the timer. It calls ``on_due`` once, with the cause and a message."""
        self._on_due = on_due
        self._set_timer()

    def sleeps(
        self, seconds: float | None, instead: bool, asleep: Callable[[], bool], on_sleep: Callable[[], None]
    ) -> None:
        """Call ``on_sleep`` when it was not used for that long. ``instead``: that is what the idle timeout leads to.

        While it is ``asleep``, it does not end for being idle. To be called before ``start``.
        """
        if instead and self._idle_seconds is not None:
            seconds = self._idle_seconds if seconds is None else min(seconds, self._idle_seconds)
            self._idle_seconds = None
        self._sleep_seconds, self._asleep, self._on_sleep = seconds, asleep, on_sleep

    def stop(self) -> None:
        self._on_due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def touch(self) -> None:
        """The sandbox was used up to this moment."""
        self._used = self._loop.time()

    def extend(self, timeout_seconds: float | None, idle_timeout_seconds: float | None) -> None:
        """Reset the lifetime or the idle timeout, counted from now. None leaves it unchanged."""
        if timeout_seconds is not None:
            self._end_after(timeout_seconds)
        if idle_timeout_seconds is not None:
            self._idle_seconds = idle_timeout_seconds
            self.touch()
        if self._on_due is not None:
            self._set_timer()

    @property
    def idle_expires_ms(self) -> int | None:
        """When it will end if it is not used any more; for one that is in use, if that were to stop now."""
        if self._idle_seconds is None:
            return None
        unused_seconds = 0.0 if self._busy() else self._loop.time() - self._used
        return int((time() + self._idle_seconds - unused_seconds) * 1000)

    def _end_after(self, seconds: float) -> None:
        self._deadline = self._loop.time() + seconds
        self.expires_ms = now_ms() + int(seconds * 1000)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        moments = [] if self._deadline is None else [self._deadline]
        if self._idle_seconds is not None:
            moments.append(self._used + self._idle_seconds)
        if self._sleep_seconds is not None:
            moments.append(max(self._used, self._tried_at) + self._sleep_seconds)
        self._timer = self._loop.call_at(min(moments), self._ring) if moments else None

    def _ring(self) -> None:
        if self._on_due is None:
            return
        now = self._loop.time()
        if self._deadline is not None and now >= self._deadline:
            self._on_due("timeout", f"its lifetime was over, {_said(now - self._created)} after it was made")
            return
        if self._busy() or self._asleep():
            self._used = now
        if self._idle_seconds is not None and now >= self._used + self._idle_seconds:
            self._on_due("idle", f"it was not used for {_said(self._idle_seconds)}")
            return
        if self._sleep_seconds is not None and now >= max(self._used, self._tried_at) + self._sleep_seconds:
            self._tried_at = now
            self._on_sleep()
        self._set_timer()


def _said(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.2g} seconds"
