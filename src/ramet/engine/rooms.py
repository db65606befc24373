"""Room for what is being made: it counts from the moment it is asked for, so that many who ask at once get no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from ramet.errors import LimitReached
from ramet.protocol.allowances import Allowance
from ramet.protocol.checks import MIB

_ALLOWANCES_KEPT = 1000
# What sets these bounds, as a person types it.
MAX_SANDBOXES = "ramet serve --max-sandboxes"
MAX_MEMORY = "ramet serve --max-memory"


class Rooms:
    """Those of one engine.

    ``living`` gives the memory limits of the sandboxes that an owner has, ``leaving`` of those that are being closed:
    as many as are allowed to live may be on their way out, so that who closes one can have another at once. Without an
    owner they give those of all.
    """

    def __init__(self, living: Callable[[str | None], list[int]], leaving: Callable[[str | None], list[int]]) -> None:
        self._living = living
        self._leaving = leaving
        self._taken: set[Room] = set()
        # As each owner was last told, for what the engine makes on its behalf and nobody asks for with an allowance.
        self._allowances: dict[str, Allowance] = {}
        self._booting: Counter[tuple[str, str]] = Counter()  # owner, name of a template

    def take(self, owner: str, allowance: Allowance, sandboxes: int, memory_bytes: int) -> Room:
        """Room for so many sandboxes, each with so much memory. To be left when they are there, or will not be."""
        self._remember(owner, allowance)
        return self._take(Room(self._taken, owner, sandboxes, sandboxes * memory_bytes), allowance)

    def take_hidden(self, owner: str, memory_bytes: int) -> Room:
        """Room for a sandbox that works for the owner and that nobody can find. To be left when it is closed."""
        room = Room(self._taken, owner, 1, memory_bytes, hidden=True)
        return self._take(room, self._allowances.get(owner, Allowance()))

    def grow(self, room: Room, memory_bytes: int) -> None:
        """Room that was taken a while ago, for what needs more memory by now. It is left if there is not as much."""
        if memory_bytes > room.memory_bytes:
            room.leave()
            room.memory_bytes = memory_bytes
            self._take(room, self._allowances.get(room.owner, Allowance()))

    def _take(self, room: Room, allowance: Allowance) -> Room:
        if allowance.sandboxes is not None or allowance.memory_bytes is not None:
            self._check(room, allowance)
        if allowance.all_sandboxes is not None or allowance.all_memory_bytes is not None:
            self._check_machine(room, allowance)
        self._taken.add(room)
        return room

    def _remember(self, owner: str, allowance: Allowance) -> None:
        self._allowances[owner] = allowance
        if len(self._allowances) > _ALLOWANCES_KEPT:
            # Of owners who have nothing, for whom nothing is made: what is forgotten here would be no bound at all.
            present = {room.owner for room in self._taken} | {owner}
            for one in [one for one in self._allowances if one not in present]:
                if not self._living(one) and not self._leaving(one):
                    del self._allowances[one]

    def _check(self, room: Room, allowance: Allowance) -> None:
        living, leaving = self._living(room.owner), self._leaving(room.owner)
        taken = [other for other in self._taken if other.owner == room.owner]
        have, allowed = len(living) + sum(other.sandboxes for other in taken), allowance.sandboxes
        if allowed is not None and have + room.sandboxes + max(len(leaving) - allowed, 0) > allowed:
            raise LimitReached(
                f"this key has {have} sandboxes{_of_which(taken)}; its limit is {allowed}",
                hint="close some, or use a key with a higher limit",
                details={"limit": "sandboxes", "allowed": allowed},
            )
        have_bytes, allowed = sum(living) + sum(other.memory_bytes for other in taken), allowance.memory_bytes
        if allowed is not None and have_bytes + room.memory_bytes + max(sum(leaving) - allowed, 0) > allowed:
            allowed_mib = allowed // MIB
            raise LimitReached(
                f"the memory limits of this key's sandboxes add up to {have_bytes // MIB} MiB, "
                f"with this one {(have_bytes + room.memory_bytes) // MIB} MiB; at most {allowed_mib} MiB are allowed",
                hint="close some, or ask for less with memory_mib",
                details={"limit": "memory_mib", "allowed": allowed_mib},
            )

    def _check_machine(self, room: Room, allowance: Allowance) -> None:
        """The bounds of the server for all owners together. How much the others have is told to nobody."""
        living, leaving = self._living(None), self._leaving(None)
        have, most = len(living) + sum(other.sandboxes for other in self._taken), allowance.all_sandboxes
        if most is not None and have + room.sandboxes + max(len(leaving) - most, 0) > most:
            raise LimitReached(
                f"the server is full: it has at most {most} sandboxes at once, of all keys together",
                hint=f"try again when some have ended; its operator can raise {MAX_SANDBOXES}",
                details={"limit": "all_sandboxes", "allowed": most},
            )
        have_bytes = sum(living) + sum(other.memory_bytes for other in self._taken)
        most = allowance.all_memory_bytes
        if most is not None and room.memory_bytes > most:  # nothing that ends would make room for it
            raise LimitReached(
                f"the sandboxes of this server may use at most {most // MIB} MiB, of all keys together, and this asks "
                f"for {room.memory_bytes // MIB} MiB",
                hint=f"ask for less with memory_mib; the server's operator can raise {MAX_MEMORY}",
                details={"limit": "all_memory_mib", "allowed": most // MIB},
            )
        if most is not None and have_bytes + room.memory_bytes + max(sum(leaving) - most, 0) > most:
            raise LimitReached(
                f"the server is full: its sandboxes may use at most {most // MIB} MiB, of all keys together, "
                f"and this one asks for {room.memory_bytes // MIB} MiB more",
                hint=f"ask for less with memory_mib, or try again when some have ended; its operator can raise "
                f"{MAX_MEMORY}",
                details={"limit": "all_memory_mib", "allowed": most // MIB},
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
                f"this key has {len(names)} templates of its own; its limit is {allowance.templates}",
                hint=f"use one of them: {', '.join(sorted(names)) or 'none'}",
                details={"limit": "templates", "allowed": allowance.templates},
            )


class Room:
    """Taken until it is left; again is harmless."""

    def __init__(self, among: set[Room], owner: str, sandboxes: int, memory_bytes: int, hidden: bool = False) -> None:
        self._among = among
        self.owner = owner
        self.sandboxes = sandboxes
        self.memory_bytes = memory_bytes
        self.hidden = hidden

    def leave(self) -> None:
        self._among.discard(self)

    def __enter__(self) -> Room:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


def _of_which(taken: Iterable[Room]) -> str:
    """Nobody finds these in a list."""
    hidden = sum(room.hidden for room in taken)
    return f", {hidden} of them to install packages" if hidden else ""
