"""Frames over a non-blocking socket: a callback for each frame that arrives, buffered writes, bounds both ways."""

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


class FrameChannel:
    """One end of a socket that carries frames. Does not own the socket: ``detach`` leaves it open.

    ``on_end`` is called once when nothing more will be read, with the ProtocolError if there was one.

    asyncio's transports need two more turns of the loop for each frame, and do not show how much is unsent.
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
        # ECONNRESET: the peer closed its socket without having read everything.
        self.reset = False
        self._paused = False
        self._draining = False
        # Callbacks, each called once when at most this many bytes are unsent.
        self._when_sent: list[tuple[int, Callable[[], None]]] = []
        self.unsent_bytes = 0
        self._loop.add_reader(sock, self._on_readable)

    def send(self, data: bytes) -> None:
        """Write what the socket takes now, and the rest when it can take more."""
        if self.detached:
            return
        sent = 0
        if not self._unsent:  # else these bytes would overtake those that wait
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                return  # the reader sees the end of the connection, too, and calls `on_end`
            if sent == len(data):
                return
            self._loop.add_writer(self._socket, self._on_writable)
        self._unsent.append(memoryview(data)[sent:])
        self.unsent_bytes += len(data) - sent

    def send_with(self, data: bytes, descriptor: int) -> None:
        """Send a short frame with a descriptor attached to its first byte. Sends everything or ends the channel.

        Raises OSError if the kernel has too many descriptors in flight for this user.
        """
        if self.detached:
            return
        try:
            if self._unsent or socket.send_fds(self._socket, [data], [descriptor]) != len(data):
                self._end(ProtocolError("an answer with a descriptor did not fit behind what was not read yet"))
        except OSError as error:
            if error.errno in NO_ROOM_ERRNOS:
                raise  # nothing was sent, and the connection still works
            # Any other error: the reader sees the end of the connection, too, and calls `on_end`.

    def when_sent(self, low_bytes: int, callback: Callable[[], None]) -> None:
        """Call back as soon as at most this many bytes are unsent."""
        if self.unsent_bytes <= low_bytes:
            # Not directly: the caller would be entered again before it has returned.
            self._loop.call_soon(callback)
        else:
            self._when_sent.append((low_bytes, callback))

    def pause(self) -> None:
        """Stop reading. Complete frames that have arrived already wait in the decoder."""
        if not self._paused and not self.detached and not self._draining:
            self._paused = True
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        if self._paused and not self.detached:
            self._paused = False
            self._loop.add_reader(self._socket, self._on_readable)
            # Frames that wait in the decoder come without new bytes: the socket may never be readable again.
            self._loop.call_soon(self._feed, b"")

    def drain(self) -> None:
        """Read everything that the socket holds now, paused or not. Only when the peer is known to be gone: it returns
        at the end of what was sent.
        """
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
        """Forget the socket. No callback is called from now on."""
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
            return b""  # treated as the end of the connection

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
                if self._paused or self.detached:  # the callback has paused or detached us; the decoder keeps the rest
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
            # Swapped first: a callback may send, and register again.
            waiting, self._when_sent = self._when_sent, []
            for low_bytes, callback in waiting:
                if self.unsent_bytes <= low_bytes:
                    callback()
                else:
                    self._when_sent.append((low_bytes, callback))
