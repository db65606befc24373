"""One direction between two streams without anybody in between: what comes to the one goes to the other by itself.

By copying at first; a transfer that turns out large and quick is spliced, see ``splicing``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ramet.network.streams.splicing import Splice, has_room

if TYPE_CHECKING:
    from ramet.network.streams.socket_stream import SocketStream

# From here on it is large and quick: so much has gone, and the last piece was so large.
BULK_BYTES = 1024 * 1024
BULK_PIECE_BYTES = 64 * 1024


class Pour:
    """From ``source`` to ``sink``. ``done`` when no more will come or can go."""

    def __init__(self, source: SocketStream, sink: SocketStream, count: int | None, bulk: bool) -> None:
        self.source = source
        self.sink = sink
        self.left = count  # None: all that comes, and the end
        self.bulk = bulk  # known to be, from what went before
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bytes = 0
        self._may_splice = bulk and (count is None or count >= BULK_BYTES)
        self._splice: Splice | None = None

    @property
    def splicing(self) -> bool:
        return self._splice is not None

    def pass_on(self, data: bytes) -> bytes:
        """Gives what is too much."""
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
        """The source has said its last."""
        if self.left is None:
            self.sink.write_eof()
        self.finish()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def splice(self) -> None:
        """If it is worth it, and the sink has nothing left to send by itself; else it is tried again when it has."""
        if not self._may_splice or self._splice is not None or self.left == 0 or not self.sink.idle or not has_room():
            return
        self._may_splice = False
        try:
            ends = self.source.socket.fileno(), self.sink.socket.fileno()
            self._splice = Splice(*ends, self.left, self._moved, self._ended)
            self.bulk = True
        except OSError:  # too many descriptors, or large pipes: copying does it, too
            pass

    def stop_splice(self) -> None:
        splice, self._splice = self._splice, None
        if splice is not None:
            rest = splice.stop()
            if rest:
                self.sink.write_uncounted(rest)

    def _moved(self, count: int) -> float:
        if self.left is not None:
            self.left -= count
        wait = 0.0
        if self.source.meter is not None:
            wait = self.source.meter.received(count)
        if self.sink.meter is not None:
            wait = max(wait, self.sink.meter.sent(count))
        return wait

    def _ended(self, problem: OSError | None, sink_problem: OSError | None) -> None:
        if problem is not None:
            self.source.break_off()
        elif sink_problem is not None:
            self.sink.break_off()
        elif self.left == 0:
            self.source.stop_pouring()
        else:
            self.stop_splice()  # the transport meets the end again, and does what is to be done then
            self.source.steer_reading()
