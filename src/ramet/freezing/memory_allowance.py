"""Allowances in a sandbox's cgroups for the memory that its copies still hold.

The kernel charges a page to the cgroup that first touched it. After a fork the parent shares its pages with its
children: when it writes to one, it gets a new page, while the old one stays charged to it for as long as a child holds
it. So a parent gets an allowance for the memory that it had at each fork, until the last copy from that fork is gone. A
child's own account starts empty.
"""

from __future__ import annotations

import asyncio
import contextlib

from ramet.isolation.pods import Pod

_PROCESSES = 2  # shadows that are still in the parent's cgroups, on their way to their own
_PAGE_TABLE_SHARE = 512  # page tables take 8 bytes for each page of 4096
_RETRY_SECONDS = 0.5


class Claim:
    """An allowance in one pod's cgroups for one snapshot. The snapshot and each sandbox made from it hold it."""

    def __init__(self, room: MemoryAllowance, memory_bytes: int) -> None:
        self._room = room
        self._snapshot = True  # holds it
        self._copies = 0  # sandboxes that hold it
        # All that was there when the snapshot was taken, as long as a sandbox shares it: that does not give way.
        self._whole_bytes = self._snapshot_bytes = self.memory_bytes = memory_bytes

    def hold(self) -> Claim:
        """For a sandbox that was made from the snapshot."""
        self._copies += 1
        self._count_anew()
        return self

    def let_go(self) -> None:
        """That sandbox is gone."""
        self._copies -= 1
        self._count_anew()

    def resize(self, memory_bytes: int) -> None:
        """Allow this much if only the snapshot holds it; the rest counts in the sandbox's limit."""
        self._snapshot_bytes = memory_bytes
        self._count_anew()

    def release(self) -> None:
        """The snapshot is gone."""
        self._snapshot = False
        self._count_anew()

    def _count_anew(self) -> None:
        before, self.memory_bytes = self.memory_bytes, self._whole_bytes if self._copies else self._snapshot_bytes
        if not self._snapshot and not self._copies:
            self._room.forget(self)
        elif self.memory_bytes != before:
            self._room.resized()


class MemoryAllowance:
    """All allowances of one pod. Owned by the sandbox that has the pod; used by the engine's loop only."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._claims: set[Claim] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    def claim(self, copies: int) -> Claim:
        """An allowance for the memory that the sandbox uses now and for the page tables of its copies.

        To be taken before the freeze: the copy is charged to the parent's cgroup at once, and without the allowance the
        kernel could kill the parent in the middle of its fork.
        """
        used = self._used_bytes()
        claim = Claim(self, used + used // _PAGE_TABLE_SHARE * (copies + 1))
        self._claims.add(claim)
        self._write()
        return claim

    def resized(self) -> None:
        """A claim needs more or less than before."""
        if self._closed:
            return
        self._write()
        if self._retry is None:
            self._shrink()

    def forget(self, claim: Claim) -> None:
        self._claims.discard(claim)
        # A retry that is under way sees the new sum when its time comes.
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
        """Lower the limit to what the remaining claims need, but never below the memory in use.

        The kernel gives the pages of an ended copy back only after a while. A limit below them would make it kill the
        parent: so this looks again until they are gone.
        """
        self._retry = None
        if self._closed or self._pod.group is None:
            return
        if self._used_bytes() > self._pod.limits.memory_bytes + self._extra_bytes():
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._shrink)
        else:
            self._write()

    def _write(self) -> None:
        if self._pod.group is not None:
            with contextlib.suppress(OSError):  # the pod has been closed meanwhile, and its cgroup is gone
                self._pod.group.set_room(self._extra_bytes(), _PROCESSES * len(self._claims))
