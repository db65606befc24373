"""Recognises repeated requests, so that no code runs twice.

The published client repeats a request whose answer it did not get, and does not mark the repetition. A request that
continues code is identified by its container, its open cells and the calls that it answers: the first one makes the
answer, and every later one gets the same answer, even while it is being made.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ramet.doors.gateway.encoding import to_json
from ramet.doors.gateway.requests.request import MessagesRequest
from ramet.doors.gateway.running.answers import AnswerRefused
from ramet.doors.gateway.services import Services
from ramet.doors.gateway.turns.message_builder import MessageBuilder
from ramet.doors.gateway.turns.turn import ModelTurn
from ramet.doors.gateway.upstream.client import Said
from ramet.doors.gateway.upstream.credentials import UpstreamCaller

_KEPT = 2_000
# The size of all answers, and of requests whose turns have not ended.
_KEPT_BYTES = 256 << 20
# The number of turns that failed half-way; the published client repeats its request within seconds.
_FAILED_KEPT = 200
_FAILED_SECONDS = 120.0


class Answered(Protocol):
    """An answer, complete or in progress."""

    @property
    def message(self) -> MessageBuilder: ...
    @property
    def said(self) -> Said: ...


@dataclass(frozen=True)
class _Whole:
    message: MessageBuilder
    said: Said


@dataclass(frozen=True)
class _Key:
    owner: str
    container_id: str | None
    cells: tuple[str, ...]
    answered: frozenset[str]
    direct: bytes
    """Digest of the conversation, for requests that no id of ours identifies.

    The ids of cells may come from the upstream, which may repeat them in other conversations. A request with other
    messages is another continuation, and runs by itself.
    """


@dataclass
class _Kept:
    answer: ModelTurn | _Whole
    answers: bytes
    size_bytes: int
    until: float = 0.0
    task: asyncio.Task[Any] | None = None


@dataclass(frozen=True)
class _FailedTurn:
    turn: ModelTurn
    size_bytes: int
    until: float


class Continuations:
    """Owns the turns that continue code, and keeps their answers for some time."""

    def __init__(self, services: Services, clock: Callable[[], float] = time.monotonic) -> None:
        self._services = services
        self._clock = clock
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._failed: OrderedDict[tuple[str, bytes], _FailedTurn] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """The approximate size of everything that is kept."""
        return sum(one.size_bytes for kept in (self._kept, self._failed) for one in kept.values())

    def join(self, request: MessagesRequest, owner: str, caller: UpstreamCaller) -> Answered:
        """The answer to this request, begun or complete. Raises AnswerRefused for contradicting results.

        There is no await in here: of two equal requests at once, exactly one begins the turn.
        """
        self._forget()
        key, answers = _key(request, owner), _digest(asdict(answer) for answer in request.calls.answers)
        kept = self._kept.get(key)
        if kept is None:
            turn = ModelTurn(self._services, request, owner, caller)
            kept = self._kept[key] = _Kept(turn, answers, request.size_bytes)
        elif kept.answers != answers:
            raise AnswerRefused(
                "these calls were already answered with other results, and the code continued with those"
            )
        else:
            self._services.metrics.continued_again()
        kept.until = self._clock() + self._services.settings.continuation_seconds
        self._kept.move_to_end(key)
        answer = kept.answer
        if isinstance(answer, ModelTurn):
            if answer.failed:
                answer.carry_on(request, caller)
                kept.task = None
            if kept.task is None:
                kept.task = self._services.spawn(self._run(key, kept, answer), "continuation")
        return answer

    def begin(
        self, request: MessagesRequest, owner: str, caller: UpstreamCaller
    ) -> tuple[ModelTurn, asyncio.Task[Any]]:
        """A new turn and its task. If the same request failed after code had run, the turn that failed is continued."""
        key = (owner, request.digest)
        failed = self._failed.pop(key, None)
        if failed is None or failed.until <= self._clock():
            turn = ModelTurn(self._services, request, owner, caller)
        else:
            turn = failed.turn
            turn.carry_on(request, caller)
        return turn, self._services.spawn(self._run_alone(key, turn), "turn")

    async def _run_alone(self, key: tuple[str, bytes], turn: ModelTurn) -> None:
        await turn.run()
        if turn.failed and turn.has_run_code:
            self._failed[key] = _FailedTurn(turn, turn.size_bytes(), self._clock() + _FAILED_SECONDS)
        self._forget()

    async def _run(self, key: _Key, kept: _Kept, turn: ModelTurn) -> None:
        await turn.run()
        if not turn.failed:
            kept.answer = _Whole(turn.message, turn.said)  # drop the history, which is long
            kept.size_bytes = turn.message.size_bytes()
        elif turn.has_run_code:
            kept.size_bytes = turn.size_bytes()
        elif self._kept.get(key) is kept:
            del self._kept[key]  # no code has run, so a repetition may start from the beginning
        self._forget()

    def _forget(self) -> None:
        """Drop what is too old, and the oldest of what is too much, but nothing that is still in progress."""
        now, size_bytes = self._clock(), self.size_bytes
        for request, failed in list(self._failed.items()):
            if failed.until > now and len(self._failed) <= _FAILED_KEPT and size_bytes <= _KEPT_BYTES:
                break
            del self._failed[request]
            size_bytes -= failed.size_bytes
        for key, kept in list(self._kept.items()):
            if kept.until > now and len(self._kept) <= _KEPT and size_bytes <= _KEPT_BYTES:
                break
            if kept.task is None or kept.task.done():
                del self._kept[key]
                size_bytes -= kept.size_bytes


def _key(request: MessagesRequest, owner: str) -> _Key:
    calls = request.calls
    direct = b"" if calls.answers else _digest(request.messages)
    cells = tuple(str(cell.get("id")) for cell in calls.cells)
    return _Key(owner, request.container_id, cells, calls.answered_ids, direct)


def _digest(values: Iterable[Any]) -> bytes:
    return hashlib.sha256(to_json(list(values))).digest()
