"""The sink of a streaming call: everything goes to the client as it comes, and no faster than the client reads."""

from __future__ import annotations

from collections.abc import Callable

from ramet.engine.cell import Collected
from ramet.engine.channel import Channel
from ramet.engine.settings import Settings
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.guest import Rich


class Streaming:
    """Sends each piece as a frame. While the client is slow the pipes are left alone, and the cell blocks in write."""

    live = True

    def __init__(self, settings: Settings, channel: Channel) -> None:
        self._settings = settings
        self._channel = channel
        self._abandoned = False
        self._when_room: Callable[[], None] | None = None

    def abandon(self) -> None:
        """The client went away: the cell runs on until its interrupt arrives, and must not block meanwhile."""
        self._abandoned = True
        if self._when_room is not None:
            self._room()

    def output(self, stream: int, data: bytes) -> None:
        if not self._abandoned:
            self._channel.send(encode(calls.OUTPUT, {"stream": stream}, data))

    def rich(self, rich: Rich) -> None:
        # A stream cannot take back what it has shown: an update is one more display, a clear is nothing.
        if not self._abandoned and rich.what != "clear":
            self._channel.send(encode(calls.RICH, calls.rich_header(rich), rich.blob))

    def full(self, when_room: Callable[[], None]) -> bool:
        if self._abandoned or self._channel.unsent_bytes <= self._settings.stream_high_bytes:
            return False
        self._when_room = when_room
        self._channel.when_sent(self._settings.stream_low_bytes, self._room)
        return True

    def collect(self, then: Callable[[Collected], None]) -> None:
        then(Collected())

    def discard(self) -> None:
        pass

    def _room(self) -> None:
        when_room, self._when_room = self._when_room, None
        if when_room is not None:
            when_room()
