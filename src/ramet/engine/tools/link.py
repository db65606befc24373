"""One connection to a sandbox's tool socket: a call, its answer, the next call. Trusts no byte that it reads."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from ramet.engine.frame_channel import FrameChannel
from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.frames import Frame, encode, encode_header, encode_text
from ramet.protocol.tools import socket_frames

if TYPE_CHECKING:
    from ramet.engine.tools.call import PendingToolAnswer

_SMALL_BYTES = 256 * 1024  # a frame up to this size needs no room from the sandbox's budget
_ACCEPTS_AT_MOST = 16
_ACCEPTED_CHARACTERS_AT_MOST = 64
_MESSAGE_CHARACTERS_AT_MOST = 64 * 1024

_WHOLE = '{"outcome":"value","more":false}'
_FIRST = '{"outcome":"value","more":true}'
_NEXT = '{"more":true}'
_LAST = '{"more":false}'


class LargeCallMemory:
    """The memory budget of a sandbox for large calls that are being received. Links get it in order of arrival."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[ToolConnection, int] = {}
        self._waiting: dict[ToolConnection, int] = {}

    def take(self, link: ToolConnection, count: int) -> bool:
        """Reserve memory for a call. False: the link must wait; ``go_on`` is called when there is room."""
        # Behind those that wait already: small calls that always fit would otherwise starve a large one.
        if not self._waiting and self._fits(count):
            self._held[link] = count
            return True
        self._waiting[link] = count
        return False

    def leave(self, link: ToolConnection) -> None:
        """Return what the link holds or waits for, and let the next ones in."""
        self._held.pop(link, None)
        self._waiting.pop(link, None)
        for waiting, count in tuple(self._waiting.items()):
            if not self._fits(count):
                return
            del self._waiting[waiting]
            self._held[waiting] = count
            waiting.go_on()

    def _fits(self, count: int) -> bool:
        # A single call always fits, however large: otherwise it would wait for ever.
        return not self._held or sum(self._held.values()) + count <= self._limit_bytes


class ToolConnection:
    """Owns its socket. ``on_call`` gets the name, the accepted encodings (JSON) and the arguments of each call."""

    def __init__(
        self,
        sock: socket.socket,
        room: LargeCallMemory,
        on_call: Callable[[ToolConnection, str, str, bytes], None],
        on_end: Callable[[ToolConnection], None],
    ) -> None:
        self._socket = sock
        self._room = room
        self._in_room = False
        self._on_call = on_call
        self._on_end = on_end
        self.call: PendingToolAnswer | None = None  # waits for its answer
        self.used = perf_counter()
        self._accepts: object = None
        self._accepts_text = "[]"
        self.channel = _LinkChannel(sock, self._on_frame, self._on_channel_end, self._on_large)

    def idle_since(self, moment: float) -> bool:
        """Whether closing it would lose nothing: a caller that finds it closed connects again before it calls."""
        return self.call is None and self.used < moment and not self.channel.busy and not self._has_news()

    def _has_news(self) -> bool:
        # A call may lie in the socket buffer that the loop has not read yet. Closing the link would drop it unseen.
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def go_on(self) -> None:
        """There is room for the link's call now: continue to read it."""
        self.channel.resume()

    def passed_on(self) -> None:
        """The call has left our memory: give its room to others."""
        if self._in_room:
            self._in_room = False
            self._room.leave(self)

    # The answer

    def value(self, data: bytes, more: bool) -> None:
        """Send the whole value, or its first part."""
        self.channel.send(encode_text(socket_frames.ANSWER, _FIRST if more else _WHOLE, data))

    def part(self, data: bytes, more: bool) -> None:
        self.channel.send(encode_text(socket_frames.MORE, _NEXT if more else _LAST, data))

    def failure(self, kind: str, message: str) -> None:
        header = {"outcome": "error", "kind": kind, "message": message[:_MESSAGE_CHARACTERS_AT_MOST], "more": False}
        self.channel.send(encode(socket_frames.ANSWER, header))

    def over(self) -> None:
        """The call has been answered: the next one may come."""
        self.call = None
        self.used = perf_counter()

    def close(self) -> None:
        """Close the connection without calling ``on_end``."""
        self.channel.detach()
        self._socket.close()
        self.passed_on()
        self._room.leave(self)  # it may still wait for room without having any

    # Frames from the sandbox

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind != socket_frames.CALL:
            raise ProtocolError(f"a frame of kind {frame.kind} at a tool socket")
        self._check_answered()
        if self.channel.in_frame:
            # Checked even if this call will be refused at once: many calls sent in one piece would otherwise be served
            # in one turn of the loop, and hold up all other sandboxes.
            raise ProtocolError("a call before the answer to the one before was there")
        header = frame.header
        accepts = header.get("accepts")
        if accepts != self._accepts:
            self._accepts_text = _read_accepts(header)
            self._accepts = accepts
        self._on_call(self, fields.text(header, "tool"), self._accepts_text, frame.blob)

    def _on_large(self, missing_bytes: int) -> None:
        self._check_answered()
        if not self._in_room:  # called for every piece of a large frame; room is taken once
            self._in_room = True
            if not self._room.take(self, missing_bytes):
                self.channel.pause()

    def _check_answered(self) -> None:
        """Raise ProtocolError if an answer is still due or unread: code that never reads must not fill our memory."""
        if self.call is not None or self.channel.unsent_bytes:
            raise ProtocolError("a call before the answer to the one before was read")

    def _on_channel_end(self, error: ProtocolError | None) -> None:
        self.close()
        self._on_end(self)


class _LinkChannel(FrameChannel):
    """A channel that reports the beginning of a large frame, before its body is in memory."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[ProtocolError | None], None],
        on_large: Callable[[int], None],
    ) -> None:
        super().__init__(sock, socket_frames.FROM_SANDBOX, on_frame, on_end)
        self._on_large = on_large

    @property
    def in_frame(self) -> bool:
        """Whether bytes of a frame that is not complete have arrived."""
        return self._decoder.in_frame

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of a frame, in either direction."""
        return self.in_frame or self.unsent_bytes > 0

    def _on_readable(self) -> None:
        super()._on_readable()
        missing_bytes = self._decoder.missing_bytes
        if missing_bytes > _SMALL_BYTES and not self.detached:
            try:
                self._on_large(missing_bytes)
            except ProtocolError as error:
                self._end(error)


def _read_accepts(header: Mapping[str, object]) -> str:
    """The encodings that the calling code can read, as JSON for the client. Raises ProtocolError for too many."""
    names = fields.texts(header, "accepts") if "accepts" in header else ()
    if len(names) > _ACCEPTS_AT_MOST or any(len(name) > _ACCEPTED_CHARACTERS_AT_MOST for name in names):
        raise ProtocolError("a call that accepts too much")
    return encode_header(names)
