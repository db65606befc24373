"""Stops a cell in steps: SIGINT twice, then a hard interrupt, and at last it kills the REPL."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Literal

from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.protocol.guest import HARD_INTERRUPT_SIGNAL

Cause = Literal["timeout", "interrupt"]


class Ladder:
    """The interrupt of one cell, step by step, until ``stop``.

    SIGINT  --1 s-->  SIGINT  --1 s-->  hard interrupt  --2 s-->  SIGKILL, unless ``kill`` is false

    ``announce`` is called before the first signal. A signal and a frame race: the guest ignores a signal that arrives
    before it has begun the cell, because it may have been meant for the previous one. The announcement names the cell,
    so an interrupt that comes too early is not lost.
    """

    def __init__(
        self, body: Body, settings: Settings, kill: bool = True, announce: Callable[[], None] | None = None
    ) -> None:
        self._body = body
        self._settings = settings
        self._may_kill = kill
        self._announce = announce
        self._timer: asyncio.TimerHandle | None = None
        self.cause: Cause | None = None  # set by the first reason to interrupt the cell
        self.sent: set[int] = set()

    def begin(self, cause: Cause) -> None:
        """Interrupt the cell. A second call changes nothing: the result names the first cause."""
        if self.cause is None:
            self.cause = cause
            if self._announce is not None:
                self._announce()
            self._send(signal.SIGINT)
            self._later(self._settings.interrupt_again_seconds, self._again)

    def begin_after(self, seconds: float) -> None:
        """Interrupt the cell at its deadline."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._deadline)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deadline(self) -> None:
        self.begin("timeout")

    def _again(self) -> None:
        self._send(signal.SIGINT)
        self._later(self._settings.hard_interrupt_seconds, self._hard)

    def _hard(self) -> None:
        self._send(HARD_INTERRUPT_SIGNAL)
        if self._may_kill:
            self._later(self._settings.kill_seconds, self._kill)

    def _kill(self) -> None:
        self._timer = None
        self.sent.add(signal.SIGKILL)
        self._body.kill()

    def _send(self, number: int) -> None:
        self.sent.add(number)
        self._body.signal(number)

    def _later(self, seconds: float, step: Callable[[], None]) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(seconds, step)
