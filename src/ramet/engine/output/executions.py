"""Executions: cells with an id, whose result and streamed output can be fetched again.

A cell that its caller wants to keep goes on when the caller disconnects. A client that fetches it gets what was
recorded, and follows it to its end. Records are bounded three times: per execution, per sandbox and per engine.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ramet.engine.cells.cell import Cell
from ramet.engine.frame_channel import FrameChannel
from ramet.engine.settings import Settings
from ramet.errors import ExecutionUnknown, RametError
from ramet.protocol import calls
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.frames import encode

_ID = re.compile(r"exe_[0-9a-f]{32}")
_PIECE_BYTES = 100  # a guess of the overhead of a piece, so that many small pieces are bounded like few large ones


def new_id() -> str:
    return f"exe_{secrets.token_hex(16)}"


def check_id(execution_id: str) -> None:
    """Raise InvalidArgument unless it is an id that ``new_id`` could have made."""
    if not _ID.fullmatch(execution_id):
        raise must("execution", "be 'exe_' and 32 hexadecimal digits", execution_id)


class _Piece(NamedTuple):
    frame: bytes  # the same object that was sent to the caller: recording costs no copy
    data_bytes: int


class Execution:
    """One cell with an id, from the queue until its record is dropped. ``caller``, if still connected, gets the final
    frame.
    """

    def __init__(
        self, execution_id: str, keep: bool, settings: Settings, caller: Callable[[bytes], None] | None
    ) -> None:
        self.id = execution_id
        self.keep = keep  # the cell goes on when the caller disconnects
        self.cell: Cell | None = None  # while the cell waits or runs
        self.final: bytes | None = None  # the frame with the outcome or the error
        self.caller = caller
        self.on_end: Callable[[Execution], None] | None = None
        self._settings = settings
        self._pieces: deque[_Piece] = deque()
        self._pieces_bytes = 0
        # The number and size of the pieces that were dropped.
        self.dropped = 0
        self.dropped_bytes = 0
        self._followers: list[Follower] = []

    def __repr__(self) -> str:
        return f"<Execution {self.id} {self.state}, {self.kept_bytes} bytes>"

    @property
    def state(self) -> str:
        if self.final is not None:
            return "ended"
        return "running" if self.cell is not None and self.cell.began else "waiting"

    @property
    def kept_bytes(self) -> int:
        return self._pieces_bytes + len(self.final or b"")

    # From the cell

    def add(self, frame: bytes, data_bytes: int) -> None:
        """Record a piece of a stream. The newest one is kept however long it is: it may be the final picture."""
        if self.final is not None:
            return  # it was cancelled; the caller has the final frame, and later output has no receiver
        pieces = self._pieces
        pieces.append(_Piece(frame, data_bytes))
        self._pieces_bytes += len(frame) + _PIECE_BYTES
        while self._pieces_bytes > self._settings.streamed_bytes and len(pieces) > 1:
            oldest = pieces.popleft()
            self._pieces_bytes -= len(oldest.frame) + _PIECE_BYTES
            self.dropped += 1
            self.dropped_bytes += oldest.data_bytes
        for follower in tuple(self._followers):  # a copy: a follower may leave during the loop
            follower.go_on()

    def on_outcome(self, outcome: calls.Outcome) -> None:
        self._end(calls.encode_outcome(outcome))

    def on_error(self, error: RametError) -> None:
        self._end(calls.encode_error(error))

    def _end(self, frame: bytes) -> None:
        # A cell that was cancelled while it ran ends a second time, when its REPL reports: the first one counts.
        if self.final is not None:
            return
        # Set before the callbacks: a caller that fetches the execution from within one must find it ended.
        self.final = frame
        self.cell = None
        caller, self.caller = self.caller, None
        if caller is not None:
            caller(frame)
        for follower in tuple(self._followers):
            follower.go_on()
        if self.on_end is not None:
            self.on_end(self)

    # For followers

    def piece(self, number: int) -> _Piece | None:
        """A piece by its number since the beginning, which must not be below ``dropped``. None: it has not come yet."""
        index = number - self.dropped
        return self._pieces[index] if index < len(self._pieces) else None

    def follow(self, follower: Follower) -> None:
        self._followers.append(follower)

    def unfollow(self, follower: Follower) -> None:
        if follower in self._followers:
            self._followers.remove(follower)


class Follower:
    """A client that fetches an execution: it gets the record, then new pieces, then the final frame.

    The record is the buffer. A slow reader misses what the record drops meanwhile, and is told how much that was. Only
    the original caller of a streamed cell can make the cell wait.
    """

    def __init__(
        self, execution: Execution, channel: FrameChannel, settings: Settings, on_final: Callable[[bytes], None]
    ) -> None:
        self._execution = execution
        self._channel = channel
        self._settings = settings
        self._on_final = on_final
        self._next = 0  # number of the next piece
        self._seen_bytes = 0  # sent, or reported as dropped
        self._waits_for_room = False
        execution.follow(self)

    def leave(self) -> None:
        self._execution.unfollow(self)

    def go_on(self) -> None:
        """Send as much as there is and as the channel has room for."""
        execution, channel = self._execution, self._channel
        while not self._waits_for_room:
            if channel.unsent_bytes > self._settings.stream_high_bytes:
                self._waits_for_room = True
                channel.when_sent(self._settings.stream_low_bytes, self._room)
            elif self._next < execution.dropped:
                missed_bytes = execution.dropped_bytes - self._seen_bytes
                self._next, self._seen_bytes = execution.dropped, execution.dropped_bytes
                channel.send(encode(calls.OUTPUT, {"stream": 0, "dropped_bytes": missed_bytes}))
            elif (piece := execution.piece(self._next)) is not None:
                self._next += 1
                self._seen_bytes += piece.data_bytes
                channel.send(piece.frame)
            else:
                if execution.final is not None:
                    self.leave()
                    self._on_final(execution.final)
                return

    def _room(self) -> None:
        self._waits_for_room = False
        self.go_on()


class _Owned:
    """The ended executions of one owner, the oldest first, and their size."""

    def __init__(self) -> None:
        self.kept: dict[Execution, Executions] = {}
        self.kept_bytes = 0


class Shelf:
    """Bounds the ended executions of all sandboxes together. The owner with the most bytes loses its oldest first, so
    that one owner cannot push out the results of the others.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._owners: dict[str, _Owned] = {}
        self.kept_bytes = 0

    def put(self, execution: Execution, of: Executions) -> None:
        self._add(execution, of)
        while self.kept_bytes > self._limit_bytes:
            most = max(self._owners.values(), key=lambda owned: owned.kept_bytes)
            oldest = next(iter(most.kept))
            if oldest is execution:
                break  # the newest one is always kept, however large it is
            most.kept[oldest].drop(oldest)

    def move(self, execution: Execution, of: Executions, to: Executions) -> None:
        self.take(execution, of)
        self._add(execution, to)

    def _add(self, execution: Execution, of: Executions) -> None:
        owned = self._owners.setdefault(of.owner, _Owned())
        owned.kept[execution] = of
        owned.kept_bytes += execution.kept_bytes
        self.kept_bytes += execution.kept_bytes

    def take(self, execution: Execution, of: Executions) -> None:
        owned = self._owners.get(of.owner)
        if owned is not None and owned.kept.pop(execution, None) is not None:
            owned.kept_bytes -= execution.kept_bytes
            self.kept_bytes -= execution.kept_bytes
            if not owned.kept:
                del self._owners[of.owner]


class Executions:
    """The executions of one sandbox by id: all that wait or run, and the last ones that have ended."""

    def __init__(self, settings: Settings, shelf: Shelf, owner: str = "") -> None:
        self.owner = owner
        self._settings = settings
        self._shelf = shelf
        self._by_id: dict[str, Execution] = {}
        self._ended: dict[Execution, None] = {}  # in the order of their ends
        self._ended_bytes = 0

    def begin(self, execution_id: str, keep: bool, caller: Callable[[bytes], None]) -> Execution:
        """Register a new execution. Raises InvalidArgument if the id is malformed or exists already."""
        check_id(execution_id)
        if execution_id in self._by_id:
            raise wrong_argument("execution", f"execution {execution_id} already exists; each cell needs a new id")
        execution = Execution(execution_id, keep, self._settings, caller)
        execution.on_end = self._on_end
        self._by_id[execution_id] = execution
        return execution

    def known(self, execution_id: str) -> Execution | None:
        return self._by_id.get(execution_id)

    def find(self, execution_id: str) -> Execution:
        """The execution of this id. Raises ExecutionUnknown."""
        execution = self.known(execution_id)
        if execution is None:
            raise ExecutionUnknown(
                f"there is no execution {execution_id!r:.80} in this sandbox, or its result is no longer kept"
            )
        return execution

    def drop(self, execution: Execution) -> None:
        self._shelf.take(execution, self)
        self._by_id.pop(execution.id, None)
        if execution in self._ended:
            del self._ended[execution]
            self._ended_bytes -= execution.kept_bytes

    def adopt(self, others: Executions) -> None:
        """Take over the executions of a sandbox that continues as this one (merge). All of them have ended."""
        for execution in tuple(others._ended):
            if execution.id in self._by_id:
                others.drop(execution)  # the id exists here already: this sandbox keeps its own
                continue
            self._by_id[execution.id] = execution
            self._ended[execution] = None
            self._shelf.move(execution, others, self)
        self._ended_bytes += others._ended_bytes
        others._by_id, others._ended, others._ended_bytes = {}, {}, 0
        self._bound()

    def clear(self) -> None:
        """Drop everything, because the sandbox is closed."""
        for execution in tuple(self._by_id.values()):
            execution.on_end = None  # one that still runs must not put itself on the shelf when it ends
            self.drop(execution)

    def _on_end(self, execution: Execution) -> None:
        self._ended[execution] = None
        self._ended_bytes += execution.kept_bytes
        self._shelf.put(execution, self)
        self._bound()

    def _bound(self) -> None:
        settings = self._settings
        while len(self._ended) > settings.executions or (
            self._ended_bytes > settings.executions_bytes and len(self._ended) > 1
        ):
            self.drop(next(iter(self._ended)))
