"""The last output of a sandbox, for clients that connect later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import time_ns
from typing import NamedTuple

from ramet.engine.settings import Settings
from ramet.protocol import calls
from ramet.protocol.frames import encode


class _Printed(NamedTuple):
    time_ns: int
    execution: str  # empty: printed by a cell without an id, or between cells
    stream: int
    data: bytes


class _Exited(NamedTuple):
    time_ns: int
    execution: str
    code: int


class Replay:
    """A ring of pieces. On the path of every cell, so recording is one append; frames are encoded on request."""

    def __init__(self, settings: Settings) -> None:
        self._limit_bytes = settings.replay_bytes
        self._limit_pieces = settings.replay_pieces
        self._pieces: deque[_Printed | _Exited] = deque()
        self._kept_bytes = 0

    def __repr__(self) -> str:
        return f"<Replay {len(self._pieces)} pieces, {self._kept_bytes} bytes>"

    def printed(self, stream: int, data: bytes, execution: str) -> None:
        self._pieces.append(_Printed(time_ns(), execution, stream, data))
        self._kept_bytes += len(data)
        if self._kept_bytes > self._limit_bytes or len(self._pieces) > self._limit_pieces:
            self._trim()

    def exited(self, code: int, execution: str) -> None:
        self._pieces.append(_Exited(time_ns(), execution, code))
        if len(self._pieces) > self._limit_pieces:
            self._trim()

    def append(self, other: Replay) -> None:
        """Add the output of another sandbox behind that of this one (merge)."""
        self._pieces.extend(other._pieces)
        self._kept_bytes += other._kept_bytes
        self._trim()

    def frames(self) -> Iterator[bytes]:
        for piece in self._pieces:
            header: dict[str, object] = {"execution": piece.execution, "ts_ms": piece.time_ns // 1_000_000}
            if isinstance(piece, _Printed):
                yield encode(calls.OUTPUT, {"stream": piece.stream, **header}, piece.data)
            else:
                yield encode(calls.EXITED, {"code": piece.code, **header})

    def _trim(self) -> None:
        pieces = self._pieces
        while self._kept_bytes > self._limit_bytes or len(pieces) > self._limit_pieces:
            oldest = pieces.popleft()
            if isinstance(oldest, _Printed):
                self._kept_bytes -= len(oldest.data)
