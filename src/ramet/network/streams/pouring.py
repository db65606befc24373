"""One direction between two streams with no coroutine in between: what one receives is written to the other.

It starts by copying. A transfer that turns out large and fast is spliced in the kernel instead, see ``splicing``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ramet.network.streams.splicing import Splice, has_room

if TYPE_CHECKING:
    from ramet.network.streams.socket_stream import SocketStream

# A transfer counts as bulk after this many bytes, if its last piece was at least this large.
BULK_BYTES = 1024 * 1024
BULK_PIECE_BYTES = 64 * 1024


class Pour:
    """Moves bytes from ``source`` to ``sink``. ``done`` resolves when no more will come or can be sent."""

    def __init__(self, source: SocketStream, sink: SocketStream, count: int | None, bulk: bool) -> None:
        self.source = source
        self.sink = sink
        self.left = count  # bytes still to move; None: everything up to and including the end
        self.bulk = bulk  # whether an earlier pour of the same source was bulk already
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bytes = 0
        # A source that was bulk before starts to splice at once, without copying a megabyte first.
        self._may_splice = bulk and (count is None or count >= BULK_BYTES)
        self._splice: Splice | None = None

    @property
    def splicing(self) -> bool:
        return self._splice is not None

    def pass_on(self, data: bytes) -> bytes:
        """Write data to the sink. Returns what exceeds the count."""
        rest = b""
        if self.left is not None:
            if len(data) > self.left:
                data, rest = data[: self.left], data[self.left :]
            self.left -= len(data)
        self.sink.write(data)
        self._bytes += len(data)
        self._may_splice = len(data) >= BULK_PIECE_BYTES and self._bytes >= BULK_BYTES
        return rest

    def end(self) -> None:
        """The source has ended: pass the end on, unless only a counted number of bytes was asked for."""
        if self.left is None:
            self.sink.write_eof()
        self.finish()

    def finish(self) -> None:
        """Resolve ``done`` once. Both ends may report that it is over."""
        if not self.done.done():
            self.done.set_result(None)

    def splice(self) -> None:
        """Start to splice, if worthwhile and if the sink has nothing left in its own write buffer.

        Spliced bytes go directly to the socket, past that buffer, so they would overtake what still waits in it. Called
        again when the buffer is empty.
        """
        if not self._may_splice or self._splice is not None or self.left == 0 or not self.sink.idle or not has_room():
            return
        # One try per piece: `pass_on` allows the next one. A failure must not be repeated at every event.
        self._may_splice = False
        try:
            ends = self.source.socket.fileno(), self.sink.socket.fileno()
            self._splice = Splice(*ends, self.left, self._moved, self._ended)
            self.bulk = True
        except OSError:  # out of descriptors, or of pipe memory for this user: copying works as well
            pass

    def stop_splice(self) -> None:
        """Stop the splice and send what its pipe still holds through the sink's transport, in order."""
        splice, self._splice = self._splice, None
        if splice is not None:
            rest = splice.stop()
            if rest:
                # Counted when it entered the pipe.
                self.sink.write_uncounted(rest)

    def _moved(self, count: int) -> float:
        """Count spliced bytes. Returns the seconds to wait until more may be moved."""
        if self.left is not None:
            self.left -= count
        wait = 0.0
        if self.source.meter is not None:
            wait = self.source.meter.received(count)
        if self.sink.meter is not None:
            wait = max(wait, self.sink.meter.sent(count))
        return wait

    def _ended(self, problem: OSError | None, sink_problem: OSError | None) -> None:
        """The splice met an error of either socket, the end of the count, or the end of the source."""
        if problem is not None:
            self.source.break_off()
        elif sink_problem is not None:
            self.sink.break_off()
        elif self.left == 0:
            self.source.stop_pouring()
        else:
            self.stop_splice()  # the transport reads the end of the source again and handles it
            self.source.steer_reading()
