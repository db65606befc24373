"""Room in a sandbox's control groups for what its copies still hold.

A page belongs to the group that first touched it. After a fork the parent's pages are its children's too: when it
writes to one, it gets a new page, while the old one stays on its account for as long as a child holds it. So a parent
is given room for what it had at each fork, until the last copy from that fork is gone. A child's own account starts
empty.
"""

from __future__ import annotations

import asyncio
import contextlib

from ramet.isolation.pods import Pod

_PROCESSES = 2  # shadows on their way from the parent's groups to their own
_PAGE_TABLE_SHARE = 512  # of 8 bytes for each page of 4096
_RETRY_SECONDS = 0.5


class Claim:
    """Room in one pod's groups on behalf of one snapshot. Held by the snapshot and by each sandbox made from it."""

    def __init__(self, room: Room, memory_bytes: int) -> None:
        self._room = room
        self._holders = 1
        self.memory_bytes = memory_bytes

    def hold(self) -> Claim:
        self._holders += 1
        return self

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._room.forget(self)


class Room:
    """All claims on one pod. Owned by the sandbox that has the pod."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._claims: set[Claim] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    def claim(self, copies: int) -> Claim:
        """Before a freeze: what the sandbox uses now may stay on its account, as do the page tables of its copies."""
        used = self._used_bytes()
        claim = Claim(self, used + used // _PAGE_TABLE_SHARE * (copies + 1))
        self._claims.add(claim)
        self._write()
        return claim

    def forget(self, claim: Claim) -> None:
        self._claims.discard(claim)
        if self._retry is None:
            self._shrink()

    def close(self) -> None:
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()

    def _used_bytes(self) -> int:
        return self._pod.group.memory_bytes() if self._pod.group is not None else 0

    def _extra_bytes(self) -> int:
        return sum(claim.memory_bytes for claim in self._claims)

    def _shrink(self) -> None:
        """Never below what is used: the kernel would kill for it. Tried again until the memory is given back."""
        self._retry = None
        if self._closed or self._pod.group is None:
            return
        if self._used_bytes() > self._pod.limits.memory_bytes + self._extra_bytes():
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._shrink)
        else:
            self._write()

    def _write(self) -> None:
        if self._pod.group is not None:
            with contextlib.suppress(OSError):
                self._pod.group.set_room(self._extra_bytes(), _PROCESSES * len(self._claims))
