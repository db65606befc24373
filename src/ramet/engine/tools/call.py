"""One call of a tool by code in a sandbox, and the client who is to answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from ramet.engine.channel import Channel
from ramet.engine.settings import Settings
from ramet.engine.tools.link import Link
from ramet.engine.tools.records import ARGUMENTS_BYTES_AT_MOST, Records
from ramet.protocol import calls
from ramet.protocol.frames import encode_text
from ramet.protocol.tools import ToolSpec


class Answerer:
    """The client of a cell that answers its tool calls, until the call in which it runs the cell is over for it."""

    def __init__(self, channel: Channel, settings: Settings) -> None:
        self._channel = channel
        self._settings = settings
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    def leave(self) -> None:
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()
            self.on_gone = None

    def tell(self, frame: bytes) -> None:
        if not self.gone:
            self._channel.send(frame)

    def full(self) -> bool:
        return self._channel.unsent_bytes > self._settings.stream_high_bytes

    def when_room(self, callback: Callable[[], None]) -> None:
        self._channel.when_sent(self._settings.stream_low_bytes, callback)


class Arriving(Protocol):
    """An answer that comes in parts."""

    def lost(self) -> None:
        """Nobody waits for the rest of it."""


@dataclass(slots=True, eq=False)
class ToolCall:
    """From the moment it was let in until its answer, or until nobody waits for one any more."""

    id: str
    tool: ToolSpec
    accepts: str  # JSON
    arguments: bytes
    link: Link
    answerer: Answerer
    records: Records
    began: float
    told: bool = False  # to the client
    timer: asyncio.TimerHandle | None = None
    arriving: Arriving | None = None

    def tell(self) -> None:
        """Hand it to the client. From here on the arguments are kept only as far as the record of it needs them."""
        # Nothing of this needs escapes: the name is one of a given tool, the id ours.
        header = f'{{"call":"{self.id}","tool":"{self.tool.name}","accepts":{self.accepts}}}'
        self.answerer.tell(encode_text(calls.TOOL_CALL, header, self.arguments))
        self.told = True
        if len(self.arguments) > ARGUMENTS_BYTES_AT_MOST:
            self.arguments = b""
        self.link.passed_on()

    def take_back(self) -> None:
        """Nobody waits for it any more."""
        if self.told and self.arriving is None:
            self.answerer.tell(encode_text(calls.TOOL_CANCELLED, f'{{"call":"{self.id}"}}'))

    def record(self, outcome: str, message: str | None) -> None:
        # Arguments that were too long to keep are empty, which no JSON is.
        self.records.add(self.tool.name, self.arguments or None, perf_counter() - self.began, outcome, message)
