"""What all calls of clients have in common: how they begin, what they receive, and what a disconnect means to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.frame_channel import FrameChannel
from ramet.engine.registry import Registry
from ramet.engine.settings import Settings
from ramet.errors import ProtocolError, RametError
from ramet.protocol import calls, fields
from ramet.protocol.frames import Frame

Answer = Awaitable[dict[str, object]]


class Peer(Protocol):
    """The connection, as a call sees it. Exactly one of ``answer``, ``finish`` and ``fail`` ends a call."""

    registry: Registry
    settings: Settings
    channel: FrameChannel

    def answer(self, header: Mapping[str, object], made: Sequence[str] = ()) -> None:
        """The last frame. ``made``: ids in it that no client knows until it has read it."""

    def finish(self, frame: bytes | None) -> None:
        """The last frame, encoded; None where the client expects none."""

    def fail(self, error: RametError) -> None: ...
    def close(self) -> None:
        """Disconnect."""

    def perform(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run it in a task; an error fails the call."""

    async def forget(self, made: Sequence[str]) -> None:
        """Close sandboxes and snapshots that no client has learnt of."""


class ClientCall:
    """One call of a client, from its first frame to its answer. The connection holds one at a time."""

    __slots__ = ("frame", "peer")

    answered = False  # it only takes in what its client still sends; another call may begin

    def __init__(self, peer: Peer, frame: Frame) -> None:
        self.peer = peer
        self.frame = frame

    def begin(self) -> None:
        """Do the work, or begin it. Raises RametError, which fails the call."""
        raise NotImplementedError

    def received(self, frame: Frame) -> None:
        """A piece of what the client uploads (CHUNK, END or ABORT). Most calls have no upload."""
        raise ProtocolError("data for a file that is not being written, or an answer that is not being given")

    def client_left(self) -> None:
        """The client disconnected before the answer."""

    def find_sandbox(self) -> Sandbox:
        header = self.frame.header
        return self.peer.registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))


class TaskCall(ClientCall):
    """A call whose answer takes a task. It goes on when its client disconnects."""

    def begin(self) -> None:
        self.peer.perform(self._serve(self.work()))

    def work(self) -> Answer:
        """The work, begun: everything the frame names exists and is allowed, and its turn is in the queue."""
        raise NotImplementedError

    async def _serve(self, work: Answer) -> None:
        self.peer.answer(await work)


class MakingCall(TaskCall):
    """A call that may make sandboxes or snapshots, whose ids only its answer tells."""

    async def _serve(self, work: Answer) -> None:
        answer = await work
        made = _made(answer)
        if self.peer.channel.detached:
            # The client may have left after the last time that the work looked: no client could ever close them.
            await self.peer.forget(made)
            return
        self.peer.answer(answer, made)


class QueuedCall(MakingCall):
    """A call that takes turns of sandboxes. When its client disconnects, turns that have not come are dropped."""

    def __init__(self, peer: Peer, frame: Frame) -> None:
        super().__init__(peer, frame)
        self.caller = Caller()

    def client_left(self) -> None:
        self.caller.leave()


Begin = Callable[[Frame, Registry, Caller, Callable[[bytes], None]], Answer]


def queued(begin: Begin) -> type[QueuedCall]:
    """The class of calls that ``begin`` begins. Its last argument takes frames that come before the answer."""

    class Queued(QueuedCall):
        def work(self) -> Answer:
            # Not in the task: the turn must be in the queue before the next frame is read, so that a cell that comes
            # next comes after it.
            return begin(self.frame, self.peer.registry, self.caller, self.peer.channel.send)

    return Queued


class RefusedUpload(ClientCall):
    """An upload that has failed already: its client sends to the end before it listens, and all of that is dropped."""

    answered = True

    def received(self, frame: Frame) -> None:
        if frame.kind != calls.CHUNK:
            self.peer.finish(None)


def is_upload(frame: Frame) -> bool:
    return frame.kind in (calls.WRITE, calls.TOOL_ANSWER, calls.IMPORT) and frame.header.get("more") is True


def _made(answer: Mapping[str, Any]) -> list[str]:
    """The ids of sandboxes and snapshots in an answer."""
    return [str(child["id"]) for child in answer.get("children", [answer] if "id" in answer else [])]
