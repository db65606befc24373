"""Conversations that the gateway keeps for some minutes, so that a client sends only what is new.

    thread: {"type": "create"}                                       keep this conversation under the answer's id
    thread: {"type": "continue", "previous_message_id": "msg_..."}   continue after that answer

The published client's tool runner uses this. For a thread that is forgotten it sends everything again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ramet.doors.gateway.encoding import to_json
from ramet.doors.gateway.errors import invalid, not_found
from ramet.doors.gateway.kinds import AnyBlock, Message

_KEPT = 10_000
# Counted as if threads shared nothing, although the threads of one conversation do.
_KEPT_BYTES = 512 << 20


@dataclass(frozen=True)
class Thread:
    """A conversation up to an answer. Threads of one conversation share its messages, so keeping many costs little."""

    messages: tuple[Message, ...] = ()
    tools: object = None
    system: object = None
    container_id: str | None = None
    size_bytes: int = 0

    def with_messages(self, messages: tuple[Message, ...], size_bytes: int) -> Thread:
        return replace(self, messages=messages, size_bytes=self.size_bytes + size_bytes)

    def with_answer(self, content: list[AnyBlock], container_id: str | None) -> Thread:
        answer = {"role": "assistant", "content": list(content)}
        messages = (*self.messages, answer) if content else self.messages
        size_bytes = self.size_bytes + len(to_json(content))
        return replace(self, messages=messages, container_id=container_id or self.container_id, size_bytes=size_bytes)


class Threads:
    """Owns all threads. An owner sees only its own."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], tuple[float, Thread]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def forget_all(self) -> None:
        self._kept.clear()
        self._bytes = 0

    def keep(self, owner: str, message_id: str, thread: Thread) -> None:
        now = self._clock()
        if (replaced := self._kept.pop((owner, message_id), None)) is not None:
            self._bytes -= replaced[1].size_bytes  # an upstream may give all its answers the same id
        self._kept[owner, message_id] = now + self._seconds, thread
        self._bytes += thread.size_bytes
        while self._kept:
            until, oldest = next(iter(self._kept.values()))
            if until > now and len(self._kept) <= _KEPT and self._bytes <= _KEPT_BYTES:
                break
            self._kept.popitem(last=False)
            self._bytes -= oldest.size_bytes

    def find(self, owner: str, message_id: str) -> Thread:
        until, thread = self._kept.get((owner, message_id), (0.0, None))
        if thread is None or until <= self._clock():
            raise not_found(
                f"no thread was found for previous_message_id {message_id[:80]}: send the whole conversation with "
                "thread.type 'create'",
                error_code="thread_not_found",
            )
        return thread


def read_thread(body: dict[str, Any], owner: str, threads: Threads) -> Thread | None:
    """The thread that a request names; None: it names none. Raises ApiError."""
    asked = body.get("thread")
    if asked is None:
        return None
    kind = asked.get("type") if isinstance(asked, dict) else None
    if kind == "create":
        return Thread(tools=body.get("tools"), system=body.get("system"))
    if kind != "continue":
        raise invalid("thread.type: must be 'create' or 'continue'")
    previous = asked.get("previous_message_id")
    if not isinstance(previous, str):
        raise invalid("thread.previous_message_id: Field required")
    thread = threads.find(owner, previous)
    for name, stored in (("tools", thread.tools), ("system", thread.system)):
        if body.get(name) is not None and body[name] != stored:
            raise invalid(
                f"{name}: differs from what the thread was created with",
                error_code="thread_fingerprint_mismatch",
            )
    return thread
