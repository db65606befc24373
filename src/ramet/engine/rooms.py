"""Room for what is being made: it counts from the moment it is asked for, so that many who ask at once get no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from ramet.errors import LimitReached
from ramet.protocol.allowances import Allowance
from ramet.protocol.checks import MIB


class Rooms:
    """Those of one engine.

    ``living`` gives the memory limits of the sandboxes that an owner has, ``leaving`` of those that are being closed:
    as many as are allowed to live may be on their way out, so that who closes one can have another at once.
    """

    def __init__(self, living: Callable[[str], list[int]], leaving: Callable[[str], list[int]]) -> None:
        self._living = living
        self._leaving = leaving
        self._taken: set[Room] = set()
        self._booting: Counter[tuple[str, str]] = Counter()  # owner, name of a template

    def take(self, owner: str, allowance: Allowance, sandboxes: int, memory_bytes: int) -> Room:
        """Room for so many sandboxes, each with so much memory. To be left when they are there, or will not be."""
        room = Room(self._taken, owner, sandboxes, sandboxes * memory_bytes)
        if allowance.sandboxes is not None or allowance.memory_bytes is not None:
            self._check(room, allowance)
        self._taken.add(room)
        return room

    def _check(self, room: Room, allowance: Allowance) -> None:
        living, leaving = self._living(room.owner), self._leaving(room.owner)
        taken = [other for other in self._taken if other.owner == room.owner]
        have, allowed = len(living) + sum(other.sandboxes for other in taken), allowance.sandboxes
        if allowed is not None and have + room.sandboxes + max(len(leaving) - allowed, 0) > allowed:
            raise LimitReached(
                f"this key has {have} sandboxes, and may have {allowed}",
                hint="close some, or ask for a key with a higher limit",
                details={"limit": "sandboxes", "allowed": allowed},
            )
        have_bytes, allowed = sum(living) + sum(other.memory_bytes for other in taken), allowance.memory_bytes
        if allowed is not None and have_bytes + room.memory_bytes + max(sum(leaving) - allowed, 0) > allowed:
            allowed_mib = allowed // MIB
            raise LimitReached(
                f"the sandboxes of this key may use {have_bytes // MIB} MiB together, "
                f"with this {(have_bytes + room.memory_bytes) // MIB} MiB, and at most {allowed_mib} MiB",
                hint="close some, or ask for less with memory_mib",
                details={"limit": "memory_mib", "allowed": allowed_mib},
            )

    @contextmanager
    def boot(self, owner: str, name: str, allowance: Allowance, known: Iterable[str]) -> Iterator[None]:
        """Within the block a template of the owner's own is being made, whoever still waits for it."""
        self.check_template(owner, name, allowance, known)
        self._booting[owner, name] += 1
        try:
            yield
        finally:
            self._booting -= Counter([(owner, name)])  # what is zero then is not kept

    def check_template(self, owner: str, name: str, allowance: Allowance, known: Iterable[str]) -> None:
        """Raise if there is no room for one more; ``known`` are those there are."""
        names = {*known, *(booting for of, booting in self._booting if of == owner)}
        if allowance.templates is not None and name not in names and len(names) >= allowance.templates:
            raise LimitReached(
                f"this key has {len(names)} templates of its own, and may have {allowance.templates}",
                hint=f"use one of them: {', '.join(sorted(names)) or 'none'}",
                details={"limit": "templates", "allowed": allowance.templates},
            )


class Room:
    """Taken until it is left; again is harmless."""

    def __init__(self, among: set[Room], owner: str, sandboxes: int, memory_bytes: int) -> None:
        self._among = among
        self.owner = owner
        self.sandboxes = sandboxes
        self.memory_bytes = memory_bytes

    def leave(self) -> None:
        self._among.discard(self)

    def __enter__(self) -> Room:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
