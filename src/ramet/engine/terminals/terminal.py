"""One terminal of a sandbox: keeps its last output for any number of readers, and bounds its pending input."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator

from ramet.engine.frame_channel import FrameChannel
from ramet.engine.making.lifetimes import now_ms
from ramet.engine.output.ring import Ring
from ramet.engine.seams import Session
from ramet.engine.settings import Settings
from ramet.errors import ExecutionUnknown, LimitReached
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.values.terminals import RING_BYTES

_READ_BYTES = 64 * 1024
# The pause between two full reads: a program that prints for ever must not take all the time of the engine.
_PAUSE_SECONDS = 0.004
# The program runs, but no process has the terminal open. The kernel then reports EPOLLHUP all the time and the loop
# would spin, so the terminal is not watched and is tried again after this time.
_DESERTED_SECONDS = 0.1
_DRAIN_BYTES = 1024 * 1024  # more than the kernel buffers of what the program printed before it ended
_PIECE_BYTES = 64 * 1024
_PENDING_BYTES = 512 * 1024
_INPUT_SECONDS = 5.0


class Terminal:
    """Owns the engine's end. Reads output whether a client is attached or not: a program never waits for readers."""

    def __init__(self, terminal_id: str, label: str, session: Session, settings: Settings) -> None:
        self.id = terminal_id
        self.label = label
        self.created_ms = now_ms()
        self.exit_code: int | None = None
        self.attached = 0
        self._loop = asyncio.get_running_loop()
        self._session = session
        self._settings = settings
        self._ring = Ring(RING_BYTES)
        self._listeners: set[Callable[[], None]] = set()
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._when_written: set[Callable[[], None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._deserted = False
        self._over = self._loop.create_future()
        self._watch()
        session.ended.add_done_callback(self._on_end)

    def __repr__(self) -> str:
        state = "runs" if self.exit_code is None else f"ended {self.exit_code}"
        return f"<Terminal {self.id} {state}, {self.attached} attached>"

    def info(self) -> dict[str, object]:
        return {"id": self.id, "label": self.label, "created_ms": self.created_ms, "exit_code": self.exit_code}

    # Output

    def _watch(self) -> None:
        self._timer = None
        self._deserted = False
        self._loop.add_reader(self._session.master, self._on_readable)
        if self._pending:
            self._loop.add_writer(self._session.master, self._on_writable)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._session.master)
        self._timer = self._loop.call_later(seconds, self._watch)

    def _on_readable(self) -> None:
        taken, deserted = self._take(_READ_BYTES)
        if taken:
            self._tell()
        if deserted:
            self._deserted = True
            self._loop.remove_writer(self._session.master)
            self._rest(_DESERTED_SECONDS)
        elif taken >= _READ_BYTES:  # there may be more at once: let others have a turn
            self._rest(_PAUSE_SECONDS)

    def _take(self, at_most_bytes: int) -> tuple[int, bool]:
        """Read what is there. Returns how much, and whether no process has the terminal open any more."""
        taken = 0
        while taken < at_most_bytes:
            try:
                data = os.read(self._session.master, _READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return taken, False
            except OSError:  # EIO: no process has it open, and everything was read
                return taken, True
            if not data:
                return taken, True
            self._ring.append(data)
            taken += len(data)
        return taken, False

    def _on_end(self, ended: object) -> None:
        """The program has ended. Background jobs may still have the terminal open, but do not keep it alive."""
        self._take(_DRAIN_BYTES)
        self._loop.remove_reader(self._session.master)
        self._loop.remove_writer(self._session.master)
        if self._timer is not None:
            self._timer.cancel()
        self._session.close_master()
        self.exit_code = self._session.ended.result()
        self._pending.clear()
        self._pending_bytes = 0
        # After the last read and after `exit_code` is set: a reader that wakes now sees all output, then the end.
        self._over.set_result(None)
        self._tell()
        self._tell_written()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[asyncio.Event]:
        woken = asyncio.Event()
        self._listeners.add(woken.set)
        self.attached += 1
        try:
            yield woken
        finally:
            self.attached -= 1
            self._listeners.discard(woken.set)

    async def attach(self, channel: FrameChannel, since: int | None) -> int:
        """Send the kept output, then new output, and return the exit code. A slow reader misses what the ring drops."""
        high_bytes, low_bytes = self._settings.stream_high_bytes, self._settings.stream_low_bytes
        at = self._ring.start if since is None else since
        with self._listening() as woken:
            while True:
                # Cleared before reading: output that arrives from here on sets the event again.
                woken.clear()
                while channel.unsent_bytes < high_bytes:
                    first, data = self._ring.read(at, _PIECE_BYTES)
                    if not data:
                        break
                    channel.send(encode(calls.TERMINAL_DATA, {"seq": first}, data))
                    at = first + len(data)
                if at < self._ring.end:
                    channel.when_sent(low_bytes, woken.set)
                elif self.exit_code is not None:
                    return self.exit_code
                await woken.wait()

    async def read(self, channel: FrameChannel, since: int, at_most_bytes: int, seconds: float) -> dict[str, object]:
        """Send at most one piece, after waiting for it or for the end. With ``at_most_bytes`` 0 it only waits for the
        end.
        """
        with self._listening() as woken, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.exit_code is None and not (at_most_bytes and since < self._ring.end):
                    woken.clear()
                    await woken.wait()
        first, data = self._ring.read(since, at_most_bytes)
        if data:
            channel.send(encode(calls.TERMINAL_DATA, {"seq": first}, data))
        next_seq = first + len(data)
        # The exit code is reported only when the client has all output.
        told = next_seq == self._ring.end or not at_most_bytes
        return {"next_seq": next_seq, "exit_code": self.exit_code if told else None}

    # Input

    async def write(self, data: bytes) -> None:
        """Write input, or keep it until the program reads. Takes all of it or nothing.

        Raises LimitReached if there is no room for a while, ExecutionUnknown if the program has ended.
        """
        room = asyncio.Event()
        waiting_at_most = max(0, _PENDING_BYTES - len(data))
        self._when_written.add(room.set)
        try:
            async with asyncio.timeout(_INPUT_SECONDS):
                # A loop: several writers may wait, and the first to wake may take the room.
                while self.exit_code is None and self._pending_bytes > waiting_at_most:
                    room.clear()
                    await room.wait()
        except TimeoutError:
            raise LimitReached(
                f"the program in terminal {self.id} does not read its input: {self._pending_bytes} bytes are waiting",
                hint="wait until the program reads, or kill the terminal",
            ) from None
        finally:
            self._when_written.discard(room.set)
        if self.exit_code is not None:
            raise ExecutionUnknown(
                f"terminal {self.id} takes no input: its program ended with {self.exit_code}",
                details={"terminal": self.id, "exit_code": self.exit_code},
            )
        if data:
            self._pending.append(memoryview(data))
            self._pending_bytes += len(data)
            self._on_writable()

    def _on_writable(self) -> None:
        while self._pending:
            piece = self._pending[0]
            try:
                written = os.write(self._session.master, piece)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                break  # no process has it open: the program ends soon, or another process opens it again
            self._pending_bytes -= written
            if written < len(piece):
                self._pending[0] = piece[written:]
                break
            self._pending.popleft()
        if self._pending and not self._deserted:
            self._loop.add_writer(self._session.master, self._on_writable)
        else:
            self._loop.remove_writer(self._session.master)
        self._tell_written()

    def _tell_written(self) -> None:
        for callback in tuple(self._when_written):
            callback()

    # Size and end

    def resize(self, columns: int, rows: int) -> None:
        if self.exit_code is None:
            self._session.resize(columns, rows)

    async def end(self, hang_up: bool = True) -> None:
        """End all processes of the terminal and wait for their end. Does nothing if it has ended."""
        if self.exit_code is None:
            # `_over` is set in _on_end, a turn of the loop after the session has ended: only then is all output read.
            await self._session.end(hang_up)
            await asyncio.wait([self._over])
