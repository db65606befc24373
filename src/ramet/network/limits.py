"""How much of the network one sandbox may use: concurrent connections, bytes per second, bytes in total."""

from __future__ import annotations

import sys
import time
from typing import Literal

from ramet.network.streams.stream import PIECE_BYTES
from ramet.protocol.network.specs import NetworkSpec

# The memory that all connections of a sandbox, or of an exposed port, may use in the proxy while peers do not read. A
# guess that leaves whole pieces to a few connections, and 4 KiB each to a thousand.
_HELD_BYTES = 16 * 1024 * 1024
_PIECE_BYTES_AT_LEAST = 4096
# Beyond its limit a sandbox still gets an error over a connection. After this many such connections, they are just
# reset.
_CLIENTS_BEYOND = 256
# How much may be sent at once after a silence, in seconds of the rate.
_BURST_SECONDS = 0.25


def piece_bytes_of(connections: int) -> int:
    """The piece size for one of this many connections. Each has two ends, with one piece in either direction."""
    return max(_PIECE_BYTES_AT_LEAST, min(PIECE_BYTES, _HELD_BYTES // (4 * max(1, connections))))


class DescriptorBudget:
    """The descriptors of this process that connections may use. All sandboxes share them; none can take them all."""

    def __init__(self, count: int) -> None:
        self.free = count

    def __repr__(self) -> str:
        return f"<DescriptorBudget, {self.free} free>"


class PeerLimits:
    """The limits and counters of one sandbox. They last as long as the proxy knows it, while the limits may change."""

    def __init__(self, network: NetworkSpec, used_bytes: int = 0, descriptors: DescriptorBudget | None = None) -> None:
        self.used_bytes = used_bytes
        self.piece_bytes = PIECE_BYTES
        self._network = network
        self._targets = 0
        self._clients = 0
        self._descriptors = descriptors or DescriptorBudget(sys.maxsize)
        # Descriptors in use, including those of connections that have ended but whose peer does not read the rest.
        self._taken = 0
        self._allowance = 0.0  # bytes that may be sent now; negative: too many were sent
        self._counted_at = time.monotonic()
        self.change(network)

    def change(self, network: NetworkSpec) -> None:
        self._network = network
        self._resize()

    @property
    def exhausted(self) -> bool:
        total = self._network.total_bytes
        return total is not None and self.used_bytes >= total

    def why_no_target(self) -> tuple[str, Literal["bytes", "limit"], str | None] | None:
        """Why there can be no further connection: reason, kind of refusal, hint. None: there can."""
        if self.exhausted:
            return self.exhaustion(), "bytes", None
        if self._targets >= self._network.connections:
            at_most = self._network.connections
            return f"this sandbox has {at_most} connections open, as many as it may; close some, or wait", "limit", None
        if not self._has_room:
            hint = "other sandboxes have connections, too"
            return "the host has no room for more connections of this sandbox; close some, or wait", "limit", hint
        return None

    @property
    def _has_room(self) -> bool:
        """Whether there is a descriptor for this sandbox.

        It may hold at most as many as are free. So some are always left for the next sandbox, however many take all
        they can.
        """
        at_most = 2 * (self._network.connections + _CLIENTS_BEYOND)
        return self._taken < min(self._descriptors.free, at_most)

    def take(self) -> None:
        """Take a descriptor. ``give_back`` follows when it is closed."""
        self._taken += 1
        self._descriptors.free -= 1

    def give_back(self) -> None:
        self._taken -= 1
        self._descriptors.free += 1

    def exhaustion(self) -> str:
        return f"this sandbox has used the {self._network.total_bytes} bytes that its network may carry"

    def begin_client(self) -> bool:
        """Whether another client may be served at all. If so, ``end_client`` follows."""
        if self._clients >= self._network.connections + _CLIENTS_BEYOND or not self._has_room:
            return False
        self._clients += 1
        self._resize()
        return True

    def end_client(self) -> None:
        self._clients -= 1
        self._resize()

    def begin_target(self) -> None:
        self._targets += 1

    def end_target(self) -> None:
        self._targets -= 1

    def spend(self, count: int) -> float:
        """Count bytes. Returns the seconds until more may be sent."""
        self.used_bytes += count
        rate = self._network.bytes_per_second
        if rate is None:
            return 0.0
        now = time.monotonic()
        # A token bucket that may go below zero: bytes are counted after they have moved.
        most = rate * _BURST_SECONDS
        self._allowance = min(most, self._allowance + (now - self._counted_at) * rate) - count
        self._counted_at = now
        return -self._allowance / rate if self._allowance < 0 else 0.0

    def _resize(self) -> None:
        """Adapt the piece size to the number of clients and to the rate: a piece is at most a burst."""
        size = piece_bytes_of(self._clients)
        rate = self._network.bytes_per_second
        if rate is not None:
            size = min(size, int(rate * _BURST_SECONDS))
        self.piece_bytes = max(size, _PIECE_BYTES_AT_LEAST)
