"""One call of a tool by code in a sandbox, and the client that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from ramet.engine.frame_channel import FrameChannel
from ramet.engine.settings import Settings
from ramet.engine.tools.link import ToolConnection
from ramet.engine.tools.records import ARGUMENTS_BYTES_AT_MOST, ToolCallRecords
from ramet.protocol import calls
from ramet.protocol.frames import encode_text
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.tools.specs import ToolSpec


class Answerer:
    """The client that answers the tool calls of its cell, for as long as its connection for that cell lasts."""

    def __init__(self, channel: FrameChannel, settings: Settings) -> None:
        self._channel = channel
        self._settings = settings
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    def leave(self) -> None:
        """The client has disconnected: calls that wait for it fail now, later ones are refused."""
        self.gone = True  # first: a call that arrives from now on must not be sent to it
        if self.on_gone is not None:
            self.on_gone()
            self.on_gone = None

    def tell(self, frame: bytes) -> None:
        if not self.gone:
            self._channel.send(frame)

    def full(self) -> bool:
        """Whether the client has not read so much that further calls should wait."""
        return self._channel.unsent_bytes > self._settings.stream_high_bytes

    def when_room(self, callback: Callable[[], None]) -> None:
        self._channel.when_sent(self._settings.stream_low_bytes, callback)


class Arriving(Protocol):
    """An answer that arrives in parts."""

    def lost(self) -> None:
        """The call has ended; the remaining parts have no receiver."""


@dataclass(slots=True, eq=False)
class PendingToolAnswer:
    """A call that was accepted and has no complete answer yet."""

    id: str
    tool: ToolSpec
    accepts: str  # JSON
    arguments: bytes
    link: ToolConnection
    answerer: Answerer
    records: ToolCallRecords
    began: float
    told: bool = False  # sent to the client; until then the call waits in the service's queue
    timer: asyncio.TimerHandle | None = None
    arriving: Arriving | None = None

    def tell(self) -> None:
        """Send the call to the client, and drop arguments that are too long for the call's record."""
        # Needs no JSON escapes: the name is that of a given tool, which was checked, and the id is our own.
        header = f'{{"call":"{self.id}","tool":"{self.tool.name}","accepts":{self.accepts}}}'
        self.answerer.tell(encode_text(calls.TOOL_CALL, header, self.arguments))
        self.told = True
        if len(self.arguments) > ARGUMENTS_BYTES_AT_MOST:
            self.arguments = b""
        self.link.passed_on()

    def take_back(self) -> None:
        """Tell the client that the answer is not wanted any more, unless it is already sending one."""
        if self.told and self.arriving is None:
            self.answerer.tell(encode_text(calls.TOOL_CANCELLED, f'{{"call":"{self.id}"}}'))

    def record(self, outcome: str, message: str | None) -> None:
        # Empty arguments were too long to keep: no JSON text is empty.
        self.records.add(self.tool.name, self.arguments or None, perf_counter() - self.began, outcome, message)
