"""Messages between engine and proxy: packets of a SOCK_SEQPACKET socket, JSON with descriptors attached.

    one message                       {"do": "open", ...}          with its descriptors
    several small ones, in order      [{"say": "tried", ...}, ...] without descriptors
    one too large for a packet        {"memfd": LENGTH}            in the first descriptor; only from the engine

Neither side ever blocks on the other: what the socket does not take at once is queued and sent later.
"""

from __future__ import annotations

import array  # noqa: F401 - send_fds imports it late, when there is no file to be read any more
import asyncio
import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ramet.errors import NO_ROOM_ERRNOS, ProtocolError

PACKET_BYTES_AT_MOST = 160 * 1024
MESSAGE_BYTES_AT_MOST = 16 * 1024 * 1024
DESCRIPTORS_AT_MOST = 64
# Put at most this much into one packet: hosts may be configured with socket buffers that are not much larger.
_SENT_BYTES_AT_MOST = 64 * 1024
# Then other callbacks of the loop run, even if the other side sends without pause.
_PACKETS_AT_ONCE = 64
_RETRY_SECONDS = 0.05

Message = dict[str, object]


class PacketChannel:
    """One end of the connection, in a running loop. Owns the socket.

    Received descriptors belong to ``on_message``. It may raise ProtocolError; then ``on_end`` follows, as it does when
    the other side disconnects.
    """

    def __init__(
        self,
        end: socket.socket,
        on_message: Callable[[Message, list[int]], None],
        on_end: Callable[[], None],
        takes_memory: bool = False,
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._on_message = on_message
        self._on_end = on_end
        self._takes_memory = takes_memory
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self.problem: str | None = None  # why a received packet could not be understood
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._readable)

    @property
    def backlog(self) -> int:
        """How many messages wait for the other side to read."""
        return len(self._waiting)

    def send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send a message, or queue it. The caller keeps the descriptors and may close them at once.

        No effect after the end.
        """
        if self._closed:
            return
        data = json.dumps(message, separators=(",", ":")).encode()
        # Duplicates, because the packet may wait in the queue. Raises OSError when descriptors run out.
        own: list[int] = []
        with contextlib.ExitStack() as undo:
            undo.callback(close_all, own)
            own += [_in_memory(data)] if len(data) > _SENT_BYTES_AT_MOST else []
            for descriptor in descriptors:
                own.append(os.dup(descriptor))
            undo.pop_all()
        if len(data) > _SENT_BYTES_AT_MOST:
            data = json.dumps({"memfd": len(data)}).encode()
        self._waiting.append((data, own))
        # With more in the queue, a writer or a timer is already registered and keeps the order.
        if len(self._waiting) == 1:
            self._writable()

    def send_all(self, messages: Sequence[Mapping[str, object]]) -> None:
        """Send small messages in as few packets as possible."""
        packed: list[str] = []
        size = 0
        for message in messages:
            text = json.dumps(message, separators=(",", ":"))
            if packed and size + len(text) > _SENT_BYTES_AT_MOST:
                self._send_packed(packed)
                packed, size = [], 0
            packed.append(text)
            size += len(text) + 1
        if packed:
            self._send_packed(packed)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Before closing: the loop would otherwise watch a number that the next open() reuses.
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for _, descriptors in self._waiting:
            close_all(descriptors)
        self._waiting.clear()

    def _send_packed(self, texts: list[str]) -> None:
        if not self._closed:
            self._waiting.append((f"[{','.join(texts)}]".encode(), []))
            if len(self._waiting) == 1:
                self._writable()

    def _writable(self) -> None:
        while self._waiting:
            data, descriptors = self._waiting[0]
            try:
                socket.send_fds(self._socket, [data], descriptors)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._socket.fileno(), self._writable)
                return
            except OSError as error:
                if error.errno in NO_ROOM_ERRNOS:
                    # ETOOMANYREFS and the like: too many descriptors are in flight for this user. That passes, but the
                    # socket stays writable meanwhile, so wait by the clock instead of by events.
                    self._loop.remove_writer(self._socket.fileno())
                    self._loop.call_later(_RETRY_SECONDS, self._try_again)
                else:
                    self._end(None)
                return
            self._waiting.popleft()
            close_all(descriptors)
        self._loop.remove_writer(self._socket.fileno())

    def _try_again(self) -> None:
        if not self._closed:
            self._writable()

    def _readable(self) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            # A handler may have closed the channel.
            if self._closed:
                return
            try:
                # The rest of an oversized packet is dropped by the kernel, which then sets MSG_TRUNC.
                data, descriptors, flags, _ = socket.recv_fds(
                    self._socket, PACKET_BYTES_AT_MOST + 1, DESCRIPTORS_AT_MOST, socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, descriptors, flags = b"", [], 0
            if not data:
                self._end(None)
                return
            try:
                # MSG_CTRUNC: this process has no numbers left for the descriptors, and the kernel has dropped some.
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise ProtocolError("a packet came cut short")
                for message in self._read(data, descriptors):
                    # The handler owns the descriptors from here on. Only the first message of a packet can have any.
                    given, descriptors = descriptors, []
                    self._on_message(message, given)
            except ProtocolError as error:
                close_all(descriptors)
                self._end(str(error))
                return

    def _read(self, data: bytes, descriptors: list[int]) -> list[Message]:
        found = _parse(data)
        if isinstance(found, dict) and "memfd" in found:
            if not self._takes_memory or not descriptors:
                raise ProtocolError("a message came in a way that this side does not take")
            found = _parse(_out_of_memory(descriptors.pop(0), found["memfd"]))
        messages: list[Message] = []
        for message in found if isinstance(found, list) else [found]:
            if not isinstance(message, dict):
                raise ProtocolError("a message is not an object")
            messages.append(message)
        return messages

    def _end(self, why: str | None) -> None:
        if not self._closed:
            self.problem = why
            self.close()
            self._on_end()


def _parse(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        # The message does not quote the bytes, which may contain a secret.
        raise ProtocolError("a packet is not JSON") from None


def _in_memory(data: bytes) -> int:
    """Put a message into a memfd."""
    descriptor = os.memfd_create("ramet-message", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor


def _out_of_memory(descriptor: int, length: object) -> bytes:
    """Read a message from a memfd; closes it. Raises ProtocolError."""
    try:
        if type(length) is not int or not 0 < length <= MESSAGE_BYTES_AT_MOST:
            raise ProtocolError("a message has an odd length")
        data = b""
        while len(data) < length:
            # pread, because the offset is shared with the sender and stands at the end of what it wrote.
            more = os.pread(descriptor, length - len(data), len(data))
            if not more:
                raise ProtocolError("a message came cut short")
            data += more
        return data
    finally:
        os.close(descriptor)


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
