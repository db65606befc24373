"""Streams of cells that somebody has begun to read, and by whom.

A cell whose output nobody reads waits, and what comes after it in the sandbox's queue waits for the cell. A thread that
holds such a stream and asks for something that takes its turn in the queue would wait for itself, without an end and,
as long as the output is short enough for the buffers on the way, only sometimes.
"""

from __future__ import annotations

import gc
import sys
import weakref
from threading import current_thread
from typing import Any, TypeVar

from ramet.errors import InvalidArgument
from ramet.protocol.results import ExitEvent

Stream = TypeVar("Stream")

# Changed by single operations only, which need no lock.
_being_read: set[Reading] = set()


class Reading:
    """The reading of one cell's stream, from its first event to its last. ``on_loop``: by a task, not by a thread."""

    def __init__(self, sandbox_id: str, on_loop: bool = False) -> None:
        self.sandbox_id = sandbox_id
        self._on_loop = on_loop
        self._reader: object = None
        self._stream: weakref.ref[Any] | None = None

    def of(self, stream: Stream) -> Stream:
        """Of this generator. When nobody holds it any more it is not read any more.

        An asynchronous one ends later than that: asyncio closes it in a task of its own.
        """
        self._stream = weakref.ref(stream)
        return stream

    def begin(self) -> None:
        check_no_unread_stream(self.sandbox_id)
        self._reader = self._me()
        _being_read.add(self)

    def gives(self, item: object) -> None:
        """An event is handed to whoever asked for it, who is the one that reads now."""
        if isinstance(item, ExitEvent):
            self.end()
        else:
            self._reader = self._me()

    def end(self) -> None:
        _being_read.discard(self)

    def held_by_caller(self) -> bool:
        if self._stream is not None and self._stream() is None:
            self.end()
            return False
        return self._reader is not None and self._reader is self._me()

    def _me(self) -> object:
        return _current_task() if self._on_loop else current_thread()


def check_no_unread_stream(sandbox_id: str) -> None:
    """For what waits for the end of a sandbox's running cell. Raises where the caller itself keeps it from ending."""
    if not _being_read or not _caller_reads(sandbox_id):
        return
    gc.collect()  # a stream that only garbage refers to can be given up
    for reading in _caller_reads(sandbox_id):
        who = "task" if reading._on_loop else "thread"
        raise InvalidArgument(
            f"this {who} has an unread stream of sandbox {sandbox_id}; waiting for its cell here could hang forever",
            hint="read the stream to its end, or close it, before you call anything that waits for the cell",
        )


def _caller_reads(sandbox_id: str) -> list[Reading]:
    return [one for one in list(_being_read) if one.sandbox_id == sandbox_id and one.held_by_caller()]


def _current_task() -> object:
    asyncio = sys.modules.get("asyncio")  # there already, if a task reads
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return None
