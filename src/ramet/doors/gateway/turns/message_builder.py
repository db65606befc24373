"""The message of an answer while it grows: its blocks, and the events that stream it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ramet.doors.gateway.encoding import to_json
from ramet.doors.gateway.kinds import AnyBlock, message_id
from ramet.doors.gateway.turns.recordings import Recording
from ramet.doors.gateway.upstream.usage import UsageSum

# Fields of an upstream's message that are written anew here.
OWN_FIELDS = frozenset(("id", "type", "role", "content", "usage", "container", "model"))

_EVENT_BYTES = 500  # of an event without its text: a guess


@dataclass(frozen=True)
class ContainerShown:
    id: str
    expires_at: datetime

    def field(self) -> dict[str, Any]:
        return {"id": self.id, "expires_at": self.expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


class MessageBuilder:
    """Owns the content of the answer. Each change of it is also an event of its recording."""

    def __init__(self, model: str, *, with_code: bool) -> None:
        self.id = ""
        self.content: list[AnyBlock] = []
        self.usage = UsageSum()
        self.container: ContainerShown | None = None
        self.stop_reason: str | None = None
        self.recording = Recording()
        self._with_code = with_code
        self._fields: dict[str, Any] = {"model": model}
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self.late_fields: dict[str, Any] = {}
        """Fields that an upstream sends only at the end, beside its stop reason."""

    @property
    def begun(self) -> bool:
        return bool(self.id)

    def begin(self, upstream: Mapping[str, Any] | None = None) -> None:
        """Begin the message, with the fields of the upstream's message if it was sampled."""
        self.id = message_id(None if upstream is None else upstream.get("id"))
        self.take_fields(upstream or {})
        self.recording.add({"type": "message_start", "message": self.whole()})

    def take_fields(self, upstream: Mapping[str, Any]) -> None:
        if isinstance(model := upstream.get("model"), str):
            self._fields["model"] = model
        others = {k: v for k, v in upstream.items() if k not in OWN_FIELDS and not k.startswith("stop_")}
        self._fields.update(others)

    def add(self, block: AnyBlock) -> None:
        """Add a block that comes in one piece."""
        self.close(self.open(block), block)

    def open(self, block: AnyBlock) -> int:
        index = len(self.content)
        self.content.append(block)
        self.recording.add({"type": "content_block_start", "index": index, "content_block": block})
        return index

    def delta(self, index: int, delta: Mapping[str, Any]) -> None:
        self.recording.add({"type": "content_block_delta", "index": index, "delta": delta})

    def close(self, index: int, block: AnyBlock) -> None:
        """Complete a block with its final content."""
        self.content[index] = block
        self.recording.add({"type": "content_block_stop", "index": index})

    def finish(self, stop: Mapping[str, Any]) -> None:
        self.stop_reason = stop.get("stop_reason")
        self._stop.update(stop)
        delta = dict(self._stop)
        if self.container is not None:
            delta["container"] = self.container.field()
        usage = self.usage.total_for_delta(with_searches=self._with_code)
        self.recording.add({"type": "message_delta", "delta": delta, "usage": usage, **self.late_fields})
        self.recording.add({"type": "message_stop"})

    def whole(self) -> dict[str, Any]:
        message = {"id": self.id, "type": "message", "role": "assistant", **self._fields, "content": list(self.content)}
        message.update({**self._stop, **self.late_fields})
        message["usage"] = self.usage.total(with_searches=self._with_code)
        if self.container is not None:
            message["container"] = self.container.field()
        return message

    def size_bytes(self) -> int:
        """The approximate size of blocks and events, counted when it is asked for."""
        return len(to_json(self.content)) + _EVENT_BYTES * len(self.recording.events)

    def mark(self) -> tuple[int, int]:
        """The current position, for ``rewind``."""
        return len(self.content), len(self.recording.events)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Undo everything after the mark.

        Readers of the recording keep what they have; later readers get a new recording.
        """
        blocks, events = mark
        del self.content[blocks:]
        self.usage.drop_sample()
        if not events:
            self.id = ""
        self.recording = Recording(self.recording.events[:events])
