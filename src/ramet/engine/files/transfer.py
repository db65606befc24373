"""Passes file contents between a connection and a worker thread, a bounded number of bytes at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from ramet.engine.frame_channel import FrameChannel
from ramet.engine.settings import Settings
from ramet.errors import ExecutionCancelled
from ramet.isolation.files.walks import Stop, Walks
from ramet.protocol import calls
from ramet.protocol.frames import Frame

Answer = TypeVar("Answer")


class Transfer:
    """A file call's view of its connection.

    A call whose client disconnects is not cancelled: that could close a descriptor while a worker thread uses it. The
    call gets ExecutionCancelled at its next step instead.
    """

    def __init__(self, channel: FrameChannel, executor: Executor, walks: Walks, owner: str, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._executor = executor
        self._walks = walks
        self._owner = owner
        self._walking: asyncio.Future[Any] | None = None
        self._settings = settings
        self._received: deque[bytes | None] = deque()  # None marks the end
        self._received_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._abandoned = False

    @property
    def listed_entries_at_most(self) -> int:
        return self._settings.listed_entries

    async def in_thread(self, work: Callable[[], Answer]) -> Answer:
        return await self._loop.run_in_executor(self._executor, work)

    async def walk(self, work: Callable[[Stop], Answer]) -> Answer:
        """Run work whose time grows with the number of files: queued by owner, stopped when the client disconnects.

        Raises ExecutionCancelled.
        """
        walking: asyncio.Future[Answer] = asyncio.ensure_future(self._walks.run(self._owner, work))
        self._walking = walking
        if self._abandoned:  # abandon() came before there was anything to cancel
            walking.cancel()
        # The walk tells its thread to stop, and ends when the thread has: only then may descriptors be closed.
        await asyncio.wait([walking])
        if walking.cancelled():
            raise ExecutionCancelled("the client went away")
        return walking.result()

    async def send(self, data: bytes) -> None:
        """Send a frame, and wait while the client is slow to read. Raises ExecutionCancelled after a disconnect."""
        self._channel.send(data)
        if self._channel.unsent_bytes > self._settings.stream_high_bytes and not self._abandoned:
            # Woken by room in the channel or by `abandon`: a channel whose client has gone never sends the rest.
            self._wake = self._loop.create_future()
            self._channel.when_sent(self._settings.stream_low_bytes, self._woken)
            await self._wake
        if self._abandoned:
            raise ExecutionCancelled("the client went away")

    async def receive(self) -> bytes | None:
        """The next piece of an upload, or None after the last. Raises ExecutionCancelled after a disconnect."""
        while not self._received or self._abandoned:
            if self._abandoned:
                raise ExecutionCancelled("the client went away")
            self._wake = self._loop.create_future()
            await self._wake
        piece = self._received.popleft()
        if piece is not None:
            self._received_bytes -= len(piece)
            if self._received_bytes <= self._settings.upload_pending_bytes:
                self._channel.resume()
        return piece

    def received(self, frame: Frame) -> None:
        if frame.kind == calls.ABORT:
            self.abandon()
        elif frame.kind == calls.END:
            self._received.append(None)
        else:
            self._received.append(frame.blob)
            self._received_bytes += len(frame.blob)
            # Backpressure: a client that sends faster than the disk writes must not fill our memory.
            if self._received_bytes > self._settings.upload_pending_bytes:
                self._channel.pause()
        self._woken()

    def abandon(self) -> None:
        self._abandoned = True
        if self._walking is not None:
            self._walking.cancel()
        self._woken()

    def _woken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
