"""Reads heads and bodies from a stream piece by piece, and writes bodies to another one.

Bytes read beyond the end stay in ``Incoming.held``: the body after a head, the next request after a body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from ramet.network.http import timeouts as times
from ramet.network.http.decompression import Unpacker
from ramet.network.http.framing import CHUNKED, LAST_CHUNK, UNTIL_END, Chunks
from ramet.network.http.heads import HEAD_BYTES_AT_MOST, Malformed
from ramet.network.http.timeouts import ConnectionTimeout
from ramet.network.secrets.masking import Masker
from ramet.network.secrets.replacing import Replacer
from ramet.network.secrets.work_budget import slices
from ramet.network.streams.socket_stream import SocketStream
from ramet.network.streams.stream import Stream

# Smaller pieces are joined with what precedes them into one packet. Larger ones are not copied for that.
_JOINED_BYTES = 64 * 1024
# How much of a body is poured from one connection to the other at a time. Not all at once, because the timeout is
# extended between two parts.
_POURED_AT_LEAST = 256 * 1024
_POURED_AT_MOST = 4 << 20


class CutShort(ConnectionError):
    """The other side has closed in the middle of a message."""


class Incoming:
    """The bytes that arrive over a stream, including those read too early."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.held = b""

    async def more(self) -> bytes:
        held, self.held = self.held, b""
        return held or await self.stream.read()

    async def head(
        self, check: Callable[[bytes, int], None] | None = None, timeout: ConnectionTimeout | None = None
    ) -> bytes:
        """Read a whole head. Returns b"" if the other side closes before it.

        ``check`` raises Malformed for a beginning that cannot become a head; it is also given how much of it it has
        seen before. Raises CutShort in the middle of a head, Malformed if the head is too long.
        """
        data = self.held or await self.stream.read()
        self.held = b""
        waiting = False
        seen = 0
        # Search only the new part, and three bytes before it: a head may arrive byte by byte.
        while (end := data.find(b"\r\n\r\n", max(0, seen - 3)) + 4) < 4:
            if not data:
                return b""
            if len(data) > HEAD_BYTES_AT_MOST:
                break
            if check is not None:
                check(data, seen)
            seen = len(data)
            # Once per head: a client that sends a byte now and then must not extend its time.
            if timeout is not None and not waiting:
                timeout.give(times.HEAD_SECONDS)
                waiting = True
            piece = await self.stream.read()
            if not piece:
                raise CutShort("the connection ended in the middle of a head")
            data += piece
        if not 4 <= end <= HEAD_BYTES_AT_MOST:
            raise Malformed(f"its head is longer than {HEAD_BYTES_AT_MOST} bytes")
        self.held = data[end:]
        return data[:end]


class HttpBody:
    """One body, with a length as defined in ``framing``."""

    def __init__(self, incoming: Incoming, length: int) -> None:
        self.ended = length == 0
        self._incoming = incoming
        self._left = length
        self._chunks = Chunks() if length == CHUNKED else None

    @property
    def is_here(self) -> bool:
        """Whether some of it has been read already."""
        return bool(self._incoming.held)

    async def next(self) -> bytes:
        """The next piece. Empty only at the end, which ``ended`` shows as well. Raises CutShort."""
        if self._chunks is not None:
            return await self._next_chunks(self._chunks)
        if self.ended:
            return b""
        data = await self._incoming.more()
        if self._left == UNTIL_END:
            self.ended = not data
            return data
        if not data:
            raise CutShort("the connection ended in the middle of a body")
        if len(data) > self._left:
            self._incoming.held = data[self._left :]
            data = data[: self._left]
        self._left -= len(data)
        self.ended = not self._left
        return data

    async def pour(self, sink: Stream) -> bool:
        """Pour a part of it without looking at it, if enough is left to be worthwhile. Returns whether it did.

        Raises CutShort.
        """
        source = self._incoming.stream
        if self._left < _POURED_AT_LEAST or self._incoming.held:
            return False
        if not isinstance(source, SocketStream) or not isinstance(sink, SocketStream):
            return False
        count = min(self._left, _POURED_AT_MOST)
        try:
            await source.pour_into(sink, count)
        finally:
            # After a cancellation, too: the rest is for `read` again, not for this sink.
            source.stop_pouring()
        if source.pour_left:
            await sink.drain()  # raises if it was the sink that ended
            raise CutShort("the connection ended in the middle of a body")
        self._left -= count
        self.ended = not self._left
        return True

    async def _next_chunks(self, chunks: Chunks) -> bytes:
        while not self.ended:
            data = await self._incoming.more()
            if not data:
                raise CutShort("the connection ended in the middle of a body")
            piece = chunks.feed(data)
            if chunks.ended:
                self.ended, self._incoming.held = True, chunks.rest
            if piece:
                return piece
        return b""


class Change:
    """Transforms a body on its way: decompresses it if necessary, and replaces texts in it."""

    def __init__(self, replacer: Replacer | Masker, unpacker: Unpacker | None = None) -> None:
        self._replacer = replacer
        self._unpacker = unpacker

    def feed(self, data: bytes) -> Iterator[bytes]:
        for piece in self._unpacker.feed(data) if self._unpacker is not None else (data,):
            if isinstance(self._replacer, Masker):
                yield from map(self._replacer.feed, slices(piece))
            else:
                yield self._replacer.feed(piece)

    def finish(self) -> bytes:
        if self._unpacker is not None:
            self._unpacker.finish()
        return self._replacer.finish()


async def pass_on(
    head: bytes, body: HttpBody, sink: Stream, in_chunks: bool, change: Change | None, timeout: ConnectionTimeout
) -> None:
    """Write a head and a whole body, at the speed of both sides. Raises CutShort, Malformed, ConnectionError."""
    # Nothing of the body is here, and it may take long to come: the head must not wait for it.
    if not body.ended and not body.is_here:
        sink.write(head)
        head = b""
    end = LAST_CHUNK if in_chunks else b""
    while not body.ended:
        timeout.give(times.ANSWER_SECONDS)
        if change is None and not head and not in_chunks and await body.pour(sink):
            await sink.drain()
            continue
        piece = await body.next()
        if change is None:
            if body.ended:
                _write(sink, head, piece, in_chunks, end)
                head = end = b""
                break
            _write(sink, head, piece, in_chunks)
            head = b""
        else:
            for part in change.feed(piece):
                _write(sink, head, part, in_chunks)
                head = b""
                await sink.drain()
                await asyncio.sleep(0)  # searching for secrets takes long: let other connections run
        await sink.drain()
    rest = change.finish() if change is not None else b""
    if head or rest or end:  # not if everything was poured
        _write(sink, head, rest, in_chunks, end)
    await sink.drain()


def _write(sink: Stream, before: bytes, piece: bytes, in_chunks: bool, after: bytes = b"") -> None:
    if in_chunks and piece:
        before += b"%x\r\n" % len(piece)
        after = b"\r\n" + after
    if len(piece) < _JOINED_BYTES:
        sink.write(before + piece + after)
        return
    if before:
        sink.write(before)
    sink.write(piece)
    if after:
        sink.write(after)
