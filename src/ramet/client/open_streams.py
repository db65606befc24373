"""Streams of cells that a caller has begun to read, and which thread or task reads each.

A cell whose output is not read blocks, and everything behind it in the sandbox's queue waits for the cell. If a thread
holds such a stream and makes a call that takes its turn in the queue, it waits for itself forever. That happens only
sometimes, because short output fits into the buffers on the way; so such a call is always refused.
"""

from __future__ import annotations

import gc
import sys
import weakref
from threading import current_thread
from typing import Any, TypeVar

from ramet.errors import InvalidArgument
from ramet.protocol.values.results import ExitEvent

Stream = TypeVar("Stream")

# Changed by single operations of a set only, which are atomic and need no lock.
_being_read: set[StreamReader] = set()


class StreamReader:
    """Records who reads one cell's stream, from its first event to its last: a task if ``on_loop``, else a thread."""

    def __init__(self, sandbox_id: str, on_loop: bool) -> None:
        self.sandbox_id = sandbox_id
        self._on_loop = on_loop
        self._reader: object = None
        self._stream: weakref.ref[Any] | None = None

    def watch(self, stream: Stream) -> Stream:
        """Return the stream, and notice when the last reference to it goes: then it is no longer read.

        An asynchronous generator ends later than that, because asyncio closes it in a task of its own.
        """
        self._stream = weakref.ref(stream)
        return stream

    def begin(self) -> None:
        """Record the caller as the reader. Raises InvalidArgument if it reads another stream of the sandbox already."""
        check_no_unread_stream(self.sandbox_id)
        self._reader = self._caller()
        _being_read.add(self)

    def hand_out(self, item: object) -> None:
        """Record an event that is handed out: the caller that asked for it is the reader now."""
        if isinstance(item, ExitEvent):
            self.end()
        else:
            self._reader = self._caller()

    def end(self) -> None:
        _being_read.discard(self)

    def held_by_caller(self) -> bool:
        if self._stream is not None and self._stream() is None:
            self.end()
            return False
        return self._reader is not None and self._reader is self._caller()

    @property
    def kind_of_reader(self) -> str:
        return "task" if self._on_loop else "thread"

    def _caller(self) -> object:
        return _current_task() if self._on_loop else current_thread()


def check_no_unread_stream(sandbox_id: str) -> None:
    """Check a call that waits for the running cell of a sandbox.

    Raises InvalidArgument if the caller itself holds an unread stream of the cell, which keeps it from ending.
    """
    if not _being_read or not _read_by_caller(sandbox_id):
        return
    gc.collect()  # a stream that only garbage refers to is not read any more
    for reader in _read_by_caller(sandbox_id):
        who = reader.kind_of_reader
        raise InvalidArgument(
            f"this {who} has an unread stream of sandbox {sandbox_id}; waiting for its cell here could hang forever",
            hint="read the stream to its end, or close it, before you call anything that waits for the cell",
        )


def _read_by_caller(sandbox_id: str) -> list[StreamReader]:
    return [reader for reader in list(_being_read) if reader.sandbox_id == sandbox_id and reader.held_by_caller()]


def _current_task() -> object:
    asyncio = sys.modules.get("asyncio")  # imported already, if a task reads
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return None
