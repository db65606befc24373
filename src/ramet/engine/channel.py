"""Frames over a non-blocking socket on the running event loop: callbacks in, one write out, bounded both ways."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable

from ramet.errors import NO_ROOM_ERRNOS, ProtocolError
from ramet.protocol.frames import Bounds, Frame, FrameDecoder

_READ_BYTES = 64 * 1024
_READ_BYTES_AT_MOST = 1024 * 1024


class Channel:
    """One end of a socket that carries frames. Does not own the socket: ``detach`` leaves it open.

    ``on_end`` is called once, with the ProtocolError if there was one, when nothing more will be read.
    asyncio's transports do the same with two more hops for each frame and cannot be looked at while they wait.
    """

    def __init__(
        self,
        sock: socket.socket,
        bounds: Bounds,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[ProtocolError | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._decoder = FrameDecoder(bounds)
        self._on_frame = on_frame
        self._on_end = on_end
        self._unsent: deque[memoryview] = deque()
        self.detached = False
        # The other side closed its socket and had not read all that was sent.
        self.reset = False
        self._paused = False
        self._draining = False
        # Each called once, when what is unsent has fallen to the given number of bytes.
        self._when_sent: list[tuple[int, Callable[[], None]]] = []
        self.unsent_bytes = 0
        self._loop.add_reader(sock, self._on_readable)

    def send(self, data: bytes) -> None:
        """Write now what the socket takes, and the rest when it can take more."""
        if self.detached:
            return
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                return  # the reader sees the end of the connection and tells
            if sent == len(data):
                return
            self._loop.add_writer(self._socket, self._on_writable)
        self._unsent.append(memoryview(data)[sent:])
        self.unsent_bytes += len(data) - sent

    def send_with(self, data: bytes, descriptor: int) -> None:
        """A short frame with a descriptor beside its first byte, which whoever reads that byte gets. All or nothing."""
        if self.detached:
            return
        try:
            if self._unsent or socket.send_fds(self._socket, [data], [descriptor]) != len(data):
                self._end(ProtocolError("an answer with a descriptor did not fit behind what was not read yet"))
        except OSError as error:
            if error.errno in NO_ROOM_ERRNOS:
                raise  # too many descriptors are under way for this user; the connection is as good as before
            # Else the reader sees the end of the connection and tells.

    def when_sent(self, low_bytes: int, callback: Callable[[], None]) -> None:
        """Call back as soon as at most so many bytes are unsent."""
        if self.unsent_bytes <= low_bytes:
            self._loop.call_soon(callback)
        else:
            self._when_sent.append((low_bytes, callback))

    def pause(self) -> None:
        """Read no more for now. Frames that came already wait inside."""
        if not self._paused and not self.detached and not self._draining:
            self._paused = True
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        if self._paused and not self.detached:
            self._paused = False
            self._loop.add_reader(self._socket, self._on_readable)
            self._loop.call_soon(self._feed, b"")

    def drain(self) -> None:
        """Take in all that the socket holds at this moment, paused or not; the other side is known to be gone."""
        self._paused = False
        self._draining = True
        self._feed(b"")
        while not self.detached:
            data = self._read()
            if data is None:
                return
            if not data:
                self.detach()
                return
            self._feed(data)

    def detach(self) -> None:
        """Forget the socket. No callback is made any more."""
        if self.detached:
            return
        self.detached = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._unsent.clear()

    def _read(self) -> bytes | None:
        try:
            missing_bytes = self._decoder.missing_bytes if self._decoder.in_frame else 0
            return self._socket.recv(
                min(missing_bytes, _READ_BYTES_AT_MOST) if missing_bytes > _READ_BYTES else _READ_BYTES
            )
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self.reset = error.errno == errno.ECONNRESET
            return b""  # an end like any other

    def _on_readable(self) -> None:
        data = self._read()
        if data:
            self._feed(data)
        elif data is not None:
            self._end(None)

    def _feed(self, data: bytes) -> None:
        if self.detached:
            return
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
                if self._paused or self.detached:
                    return
        except ProtocolError as error:
            self._end(error)

    def _end(self, error: ProtocolError | None) -> None:
        if not self.detached:
            self.detach()
            self._on_end(error)

    def _on_writable(self) -> None:
        while self._unsent:
            piece = self._unsent[0]
            try:
                sent = self._socket.send(piece)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._unsent.clear()
                self.unsent_bytes = 0
                break
            self.unsent_bytes -= sent
            if sent < len(piece):
                self._unsent[0] = piece[sent:]
            else:
                self._unsent.popleft()
        if not self._unsent:
            self._loop.remove_writer(self._socket)
        if self._when_sent:
            waiting, self._when_sent = self._when_sent, []
            for low_bytes, callback in waiting:
                if self.unsent_bytes <= low_bytes:
                    callback()
                else:
                    self._when_sent.append((low_bytes, callback))
