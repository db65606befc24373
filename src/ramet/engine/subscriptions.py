"""Sends events to subscribers when sandboxes of an engine begin and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ramet.engine.frame_channel import FrameChannel
from ramet.protocol import calls
from ramet.protocol.frames import encode


class Subscription:
    """A subscription to the events of all owners, or of one. A subscriber that does not read is disconnected."""

    def __init__(self, channel: FrameChannel, owner: str | None, limit_bytes: int, hang_up: Callable[[], None]) -> None:
        self._channel = channel
        self._owner = owner
        self._limit_bytes = limit_bytes
        self._hang_up = hang_up

    def tell(self, owner: str, frame: bytes) -> None:
        if self._owner not in (None, owner):
            return
        if self._channel.unsent_bytes > self._limit_bytes:
            self._hang_up()
        else:
            self._channel.send(frame)


class Subscriptions:
    """All subscriptions of one engine."""

    def __init__(self) -> None:
        self._all: set[Subscription] = set()

    def add(self, subscription: Subscription) -> None:
        self._all.add(subscription)

    def remove(self, subscription: Subscription) -> None:
        self._all.discard(subscription)

    def begun(self, row: Mapping[str, object]) -> None:
        if self._all:
            self._tell(str(row["owner"]), {"event": "begun", "sandbox": row})

    def ended(self, sandbox_id: str, owner: str, cause: str, message: str) -> None:
        if self._all:
            self._tell(owner, {"event": "ended", "id": sandbox_id, "owner": owner, "cause": cause, "message": message})

    def _tell(self, owner: str, event: Mapping[str, object]) -> None:
        frame = encode(calls.NEWS, event)
        for subscription in tuple(self._all):  # a copy: a subscriber that is disconnected is removed during the loop
            subscription.tell(owner, frame)
