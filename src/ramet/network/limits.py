"""What one sandbox may take of the network: connections at once, bytes for each second, bytes altogether."""

from __future__ import annotations

import sys
import time
from typing import Literal

from ramet.network.streams.stream import PIECE_BYTES
from ramet.protocol.network import NetworkSpec

# What all connections of a sandbox, or of an exposed port, may leave with the proxy when nobody reads from them: a
# guess that leaves a few connections with whole pieces, and a thousand with 4 KiB each.
_HELD_BYTES = 16 * 1024 * 1024
_PIECE_BYTES_AT_LEAST = 4096
# A sandbox at its limit is told so over a connection: so many more are listened to before they are just reset.
_CLIENTS_BEYOND = 256
# How much may go at once after a silence, in seconds of the rate.
_BURST_SECONDS = 0.25


def piece_bytes_of(connections: int) -> int:
    """What one of so many may hold: of its two ends, each a piece on either way."""
    return max(_PIECE_BYTES_AT_LEAST, min(PIECE_BYTES, _HELD_BYTES // (4 * max(1, connections))))


class Descriptors:
    """Those of this process that connections may take. All sandboxes share them, and no one can have them all."""

    def __init__(self, count: int) -> None:
        self.free = count

    def __repr__(self) -> str:
        return f"<Descriptors, {self.free} free>"


class Limits:
    """Of one sandbox. Lives as long as the proxy knows it; the limits themselves may change."""

    def __init__(self, network: NetworkSpec, used_bytes: int = 0, descriptors: Descriptors | None = None) -> None:
        self.used_bytes = used_bytes
        self.piece_bytes = PIECE_BYTES
        self._network = network
        self._targets = 0
        self._clients = 0
        self._descriptors = descriptors or Descriptors(sys.maxsize)
        self._taken = 0  # of these, also for connections that are over and wait for a peer that does not read
        self._allowance = 0.0  # bytes that may go now; below zero: too many went
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
        """What stands against one more connection: why, as what it is refused, and what helps. None: nothing."""
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
        """Nobody has more than is left: so something is left for whoever comes, however many take all they can."""
        at_most = 2 * (self._network.connections + _CLIENTS_BEYOND)
        return self._taken < min(self._descriptors.free, at_most)

    def take(self) -> None:
        """A descriptor; ``give_back`` follows when it is closed."""
        self._taken += 1
        self._descriptors.free -= 1

    def give_back(self) -> None:
        self._taken -= 1
        self._descriptors.free += 1

    def exhaustion(self) -> str:
        return f"this sandbox has used the {self._network.total_bytes} bytes that its network may carry"

    def begin_client(self) -> bool:
        """Whether one more program may be listened to at all; if so, ``end_client`` follows."""
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
        """Count bytes that went; the seconds until more may go."""
        self.used_bytes += count
        rate = self._network.bytes_per_second
        if rate is None:
            return 0.0
        now = time.monotonic()
        most = rate * _BURST_SECONDS
        self._allowance = min(most, self._allowance + (now - self._counted_at) * rate) - count
        self._counted_at = now
        return -self._allowance / rate if self._allowance < 0 else 0.0

    def _resize(self) -> None:
        size = piece_bytes_of(self._clients)
        rate = self._network.bytes_per_second
        if rate is not None:
            size = min(size, int(rate * _BURST_SECONDS))
        self.piece_bytes = max(size, _PIECE_BYTES_AT_LEAST)
