"""Writes a stream that is too long for a result to a file of the sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from ramet.engine.files.tree import SandboxTree

FOLDER = "/var/tmp/ramet"


class Account(Protocol):
    """Counts the spilled bytes of a sandbox. The kernel does not charge them to it, because the engine writes them."""

    def take_spill(self, size_bytes: int) -> bool:
        """Count more bytes. False: there is no room for them."""

    def end_spill(self, given_back_bytes: int) -> None: ...


class Spill:
    """A file that a worker thread writes, one write at a time: a slow disk holds up one cell, not the engine.

    If the file cannot be written (the sandbox's disk is full), it is removed and the result names no path.

    The loop's thread owns all fields but ``_descriptor``. ``_busy`` keeps two jobs from running at once: their writes
    would be out of order, and one could close the descriptor under the other.
    """

    def __init__(
        self, executor: Executor, tree: SandboxTree, path: str, account: Account, limit_bytes: int, pending_bytes: int
    ) -> None:
        self.path = path
        self._account = account
        self._counted_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._tree = tree  # owned: closed with the file
        self._limit_bytes = limit_bytes
        self._pending_bytes_at_most = pending_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._total_bytes = 0
        self._descriptor: int | None = None
        self._failed = False
        self._busy = False
        self._when_room: Callable[[], None] | None = None
        self._when_written: Callable[[str | None], None] | None = None

    @property
    def full(self) -> bool:
        return self._pending_bytes > self._pending_bytes_at_most

    def add(self, data: bytes) -> None:
        self._total_bytes += len(data)
        if self._total_bytes > self._limit_bytes or (not self._failed and not self._account.take_spill(len(data))):
            self._failed = True
        if self._failed:
            return
        self._counted_bytes += len(data)
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._go_on()

    def when_room(self, callback: Callable[[], None]) -> None:
        self._when_room = callback

    def finish(self, when_written: Callable[[str | None], None]) -> None:
        """The stream has ended: call back with the path when everything is in the file, or with None if it failed."""
        self._when_written = when_written
        self._go_on()

    def _go_on(self) -> None:
        if self._busy:
            return  # _done calls this again
        if self._pending and not self._failed:
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            self._submit(lambda: self._write(pending))
        elif self._when_written is not None:
            when_written, self._when_written = self._when_written, None
            path = None if self._failed else self.path
            self._submit(self._close, lambda: when_written(path))

    def _submit(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        self._busy = True
        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(lambda done: self._done(done, then))

    def _done(self, future: asyncio.Future[None], then: Callable[[], None] | None) -> None:
        self._busy = False
        if future.exception() is not None:
            self._failed = True
            self._pending.clear()
            self._pending_bytes = 0
        # After a failure nothing is pending: a cell that waits for room must be let go, too.
        if self._when_room is not None and not self.full:
            when_room, self._when_room = self._when_room, None
            when_room()
        if then is not None:
            self._account.end_spill(self._counted_bytes if self._failed else 0)
            then()
        else:
            self._go_on()

    # In the worker thread, one job at a time

    def _write(self, pieces: list[bytes]) -> None:
        if self._descriptor is None:
            self._descriptor = self._tree.open_to_write(self.path)
        data = memoryview(b"".join(pieces))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _close(self) -> None:
        try:
            if self._descriptor is not None:
                if self._failed:
                    os.ftruncate(self._descriptor, 0)  # code in the sandbox may have renamed or linked the file
                os.close(self._descriptor)
                if self._failed:
                    self._tree.remove(self.path, recursive=False)
        finally:
            self._tree.close()
