"""The sink of a streaming call: sends all output to the client as it arrives, no faster than the client reads."""

from __future__ import annotations

from collections.abc import Callable

from ramet.engine.cells.cell import Collected
from ramet.engine.frame_channel import FrameChannel
from ramet.engine.output.executions import Execution
from ramet.engine.settings import Settings
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.guest import Rich


class Streaming:
    """Sends each piece as a frame. While the client is slow, the pipes are not read and the cell blocks in its write.

    Records each piece in the ``execution``, too, if there is one; after a disconnect it only records.
    """

    live = True

    def __init__(self, settings: Settings, channel: FrameChannel, execution: Execution | None = None) -> None:
        self._settings = settings
        self._execution = execution
        self._channel = channel
        self._abandoned = False
        self._when_room: Callable[[], None] | None = None

    def abandon(self) -> None:
        self._abandoned = True
        # The cell may be held up by the client that has just left: nobody else would let it go on.
        if self._when_room is not None:
            self._room()

    def output(self, stream: int, data: bytes) -> None:
        if not self._abandoned or self._execution is not None:
            self._send(encode(calls.OUTPUT, {"stream": stream}, data), len(data))

    def rich(self, rich: Rich) -> None:
        # A stream cannot take back what it has sent: an update is another display, a clear is an event.
        if not self._abandoned or self._execution is not None:
            if rich.what == "clear":
                frame = encode(calls.CLEARED, {"wait": rich.wait})
            else:
                frame = encode(calls.RICH, calls.rich_header(rich), rich.blob)
            self._send(frame, len(frame))

    def _send(self, frame: bytes, data_bytes: int) -> None:
        if not self._abandoned:
            self._channel.send(frame)
        if self._execution is not None:
            self._execution.add(frame, data_bytes)

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
