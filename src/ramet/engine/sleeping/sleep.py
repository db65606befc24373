"""Whether a sandbox is awake. ``hibernation.py`` puts it to sleep and wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from ramet.errors import RametError


class StateOnDisk:
    """The newest image of one sandbox, and what came of the last try to write one. ``last_error`` empty: it worked."""

    def __init__(self) -> None:
        self.written_ms: int | None = None
        self.size_bytes = 0
        self.last_error = ""

    def __repr__(self) -> str:
        return f"<StateOnDisk, {self.size_bytes} bytes{', ' + self.last_error if self.last_error else ''}>"

    def written(self, now_ms: int, size_bytes: int) -> None:
        self.written_ms, self.size_bytes, self.last_error = now_ms, size_bytes, ""

    def header(self) -> dict[str, object] | None:
        """For a description of the sandbox. None: nobody has tried to write an image of it so far."""
        if self.written_ms is None and not self.last_error:
            return None
        return {"written_ms": self.written_ms, "size_bytes": self.size_bytes, "last_error": self.last_error}


class Sleep:
    """The sleep of one sandbox, which owns it.

    Calls that take no turn in its queue wait for ``awake`` before they use its body. They come in the order in which
    they arrived: all wait for the same future.
    """

    def __init__(self) -> None:
        self.asleep = False
        self.wake: Callable[[], Awaitable[None]] | None = None  # given by who put it to sleep; raises RametError
        self._callers = 0  # that wait for it; an idle sandbox that is being written is woken for them at once
        # Set before the freeze: a file call that wrote to the body after it would be lost with the body.
        self._falling: asyncio.Future[None] | None = None
        # One for all callers: two wake-ups would pour two bodies.
        self._waking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Sleep {'asleep' if self.asleep else 'falling' if self.falling else 'awake'}>"

    @property
    def falling(self) -> bool:
        """Whether it is about to be asleep: nothing may be changed any more."""
        return self._falling is not None

    @property
    def wanted(self) -> bool:
        """Whether calls wait for it."""
        return self._callers > 0

    @property
    def is_awake(self) -> bool:
        return not self.asleep and self._falling is None

    @contextmanager
    def fall(self) -> Iterator[None]:
        """Inside, calls that take no turn wait until it is asleep, and then wake it, or until it is not to sleep."""
        falling = self._falling = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._falling = None
            falling.set_result(None)

    async def awake(self) -> None:
        """Wait until it is awake; wake it if need be. Raises RametError, and then it sleeps on."""
        self._callers += 1
        try:
            # Again after each wait: it may have gone back to sleep before this task had its turn in the loop.
            while not self.is_awake:
                if self._falling is not None:
                    await asyncio.shield(self._falling)
                    continue
                if self._waking is None:
                    # One task for all callers, and shielded: a caller that is cancelled must not stop it half-way.
                    self._waking = asyncio.get_running_loop().create_task(self._wake())
                await asyncio.shield(self._waking)
        finally:
            self._callers -= 1

    async def _wake(self) -> None:
        try:
            assert self.wake is not None
            await self.wake()
            self.asleep = False  # with nothing awaited in between: from now on it has a body
        finally:
            self._waking = None

    def wake_soon(self) -> None:
        """Wake it without waiting, because a client has connected to one of its ports."""
        if self._waking is None and self.asleep:
            self._waking = asyncio.get_running_loop().create_task(self._wake())
            self._waking.add_done_callback(_retrieve)

    async def settled(self) -> None:
        """Wait until no wake-up is under way, however it ends."""
        if self._waking is not None:
            await asyncio.wait([self._waking])


def _retrieve(task: asyncio.Task[None]) -> None:
    """Asyncio would log an error that no caller waits for; the next call meets it again."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, RametError):
        raise error
