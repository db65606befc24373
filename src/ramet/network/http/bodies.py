"""Reads heads and bodies from a stream piece by piece, and writes bodies to another one.

What was read too much stays in ``Incoming.held``: the body behind a head, the next request behind a body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from ramet.network.http import patience as times
from ramet.network.http.decoding import Unpacker
from ramet.network.http.framing import CHUNKED, LAST_CHUNK, UNTIL_END, Chunks
from ramet.network.http.heads import HEAD_BYTES_AT_MOST, Malformed
from ramet.network.http.patience import Patience
from ramet.network.secrets.effort import slices
from ramet.network.secrets.masking import Masker
from ramet.network.secrets.replacing import Replacer
from ramet.network.streams.socket_stream import SocketStream
from ramet.network.streams.stream import Stream

# Less is put together with what comes before it, into one packet; more is not copied for that.
_JOINED_BYTES = 64 * 1024
# Bytes that go from one connection to the other by themselves. Not all at once: whoever waits for them wants to know,
# now and then, that they still go.
_POURED_AT_LEAST = 256 * 1024
_POURED_AT_MOST = 4 << 20


class CutShort(ConnectionError):
    """The other side has ended in the middle of a message."""


class Incoming:
    """What comes over a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.held = b""

    async def more(self) -> bytes:
        held, self.held = self.held, b""
        return held or await self.stream.read()

    async def head(self, check: Callable[[bytes, int], None] | None = None, patience: Patience | None = None) -> bytes:
        """All of a head; b"" if the other side has ended before it. ``check`` is asked whether to wait for the rest,
        and told how much of it it has seen before.
        """
        data = self.held or await self.stream.read()
        self.held = b""
        waiting = False
        seen = 0
        while (end := data.find(b"\r\n\r\n", max(0, seen - 3)) + 4) < 4:
            if not data:
                return b""
            if len(data) > HEAD_BYTES_AT_MOST:
                break
            if check is not None:
                check(data, seen)
            seen = len(data)
            if patience is not None and not waiting:
                patience.give(times.HEAD_SECONDS)
                waiting = True
            piece = await self.stream.read()
            if not piece:
                raise CutShort("the connection ended in the middle of a head")
            data += piece
        if not 4 <= end <= HEAD_BYTES_AT_MOST:
            raise Malformed(f"its head is longer than {HEAD_BYTES_AT_MOST} bytes")
        self.held = data[end:]
        return data[:end]


class Body:
    """One body, of a length as ``framing`` tells it."""

    def __init__(self, incoming: Incoming, length: int) -> None:
        self.ended = length == 0
        self._incoming = incoming
        self._left = length
        self._chunks = Chunks() if length == CHUNKED else None

    @property
    def is_here(self) -> bool:
        """Some of it has been read already."""
        return bool(self._incoming.held)

    async def next(self) -> bytes:
        """Another piece; empty only at the end, which ``ended`` tells as well."""
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
        """Let a part of it go by itself, if nobody has to look at it and enough is left to make it worth while."""
        source = self._incoming.stream
        if self._left < _POURED_AT_LEAST or self._incoming.held:
            return False
        if not isinstance(source, SocketStream) or not isinstance(sink, SocketStream):
            return False
        count = min(self._left, _POURED_AT_MOST)
        try:
            await source.pour_into(sink, count)
        finally:
            source.stop_pouring()
        if source.pour_left:
            await sink.drain()  # raises, if it was the sink
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
    """What happens to a body on its way: it is unpacked, if it has to be, and texts in it are replaced."""

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
    head: bytes, body: Body, sink: Stream, in_chunks: bool, change: Change | None, patience: Patience
) -> None:
    """Write a head and all of a body, as fast as it comes and can go."""
    if not body.ended and not body.is_here:
        sink.write(head)
        head = b""
    end = LAST_CHUNK if in_chunks else b""
    while not body.ended:
        patience.give(times.ANSWER_SECONDS)
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
                await asyncio.sleep(0)  # looking for secrets takes a while: others have their turn
        await sink.drain()
    rest = change.finish() if change is not None else b""
    if head or rest or end:  # not so if it was poured
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
