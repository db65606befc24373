"""Quotas: how many sandboxes, how much memory and how many templates an owner and the whole engine may have.

A sandbox counts from the moment it is asked for, so that many callers at once get no more than the quota.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from ramet.errors import LimitReached
from ramet.protocol.checks import MIB
from ramet.protocol.values.allowances import Allowance

_ALLOWANCES_KEPT = 1000
# The options that set these bounds, as a person types them.
MAX_SANDBOXES = "ramet serve --max-sandboxes"
MAX_MEMORY = "ramet serve --max-memory"


class Quotas:
    """The quotas of one engine, and what is reserved of them.

    ``living`` returns the memory limits of an owner's sandboxes, or without an owner those of all; ``leaving`` those of
    sandboxes that are being closed. As many as may live may also be leaving, so that a caller that closes one can have
    another at once.
    """

    def __init__(self, living: Callable[[str | None], list[int]], leaving: Callable[[str | None], list[int]]) -> None:
        self._living = living
        self._leaving = leaving
        self._reserved: set[Reservation] = set()
        # The last allowance of each owner, for sandboxes that the engine makes on its behalf without a request.
        self._allowances: dict[str, Allowance] = {}
        self._booting: Counter[tuple[str, str]] = Counter()  # owner, name of a template

    def reserve(self, owner: str, allowance: Allowance, sandboxes: int, memory_bytes: int) -> Reservation:
        """Reserve quota for sandboxes; release it when they exist or creation failed. Raises LimitReached."""
        self._remember(owner, allowance)
        return self._reserve(Reservation(self._reserved, owner, sandboxes, sandboxes * memory_bytes), allowance)

    def reserve_again(self, owner: str, memory_bytes: int) -> Reservation:
        """Reserve quota for a sandbox that is woken; release it when it is awake, or is not. Raises LimitReached."""
        asked = Reservation(self._reserved, owner, 1, memory_bytes)
        return self._reserve(asked, self._allowances.get(owner, Allowance()))

    def allowance_of(self, owner: str) -> Allowance:
        """The last one of an owner, as far as it is known."""
        return self._allowances.get(owner, Allowance())

    def known_or(self, owner: str, otherwise: Callable[[], Allowance]) -> Allowance:
        """The last allowance of an owner, or for one that this engine has not heard of yet, another."""
        return self._allowances[owner] if owner in self._allowances else otherwise()

    def reserve_hidden(self, owner: str, memory_bytes: int) -> Reservation:
        """Reserve quota for a sandbox that no list shows; release it when that is closed. Raises LimitReached."""
        asked = Reservation(self._reserved, owner, 1, memory_bytes, hidden=True)
        return self._reserve(asked, self._allowances.get(owner, Allowance()))

    def grow(self, asked: Reservation, memory_bytes: int) -> None:
        """Raise an earlier reservation to more memory. Raises LimitReached, and then it is released."""
        if memory_bytes > asked.memory_bytes:
            asked.release()
            asked.memory_bytes = memory_bytes
            self._reserve(asked, self._allowances.get(asked.owner, Allowance()))

    def _reserve(self, asked: Reservation, allowance: Allowance) -> Reservation:
        if allowance.sandboxes is not None or allowance.memory_bytes is not None:
            self._check(asked, allowance)
        if allowance.all_sandboxes is not None or allowance.all_memory_bytes is not None:
            self._check_machine(asked, allowance)
        self._reserved.add(asked)
        return asked

    def _remember(self, owner: str, allowance: Allowance) -> None:
        self._allowances[owner] = allowance
        if len(self._allowances) > _ALLOWANCES_KEPT:
            # Only of owners that have nothing: without its allowance an owner would have no bound at all.
            present = {reservation.owner for reservation in self._reserved} | {owner}
            for one in [one for one in self._allowances if one not in present]:
                if not self._living(one) and not self._leaving(one):
                    del self._allowances[one]

    def _check(self, asked: Reservation, allowance: Allowance) -> None:
        living, leaving = self._living(asked.owner), self._leaving(asked.owner)
        taken = [other for other in self._reserved if other.owner == asked.owner]
        have, allowed = len(living) + sum(other.sandboxes for other in taken), allowance.sandboxes
        if allowed is not None and have + asked.sandboxes + max(len(leaving) - allowed, 0) > allowed:
            raise LimitReached(
                f"this key has {have} sandboxes{_of_which(taken)}; its limit is {allowed}",
                hint="close some, or use a key with a higher limit",
                details={"limit": "sandboxes", "allowed": allowed},
            )
        have_bytes, allowed = sum(living) + sum(other.memory_bytes for other in taken), allowance.memory_bytes
        if allowed is not None and have_bytes + asked.memory_bytes + max(sum(leaving) - allowed, 0) > allowed:
            allowed_mib = allowed // MIB
            raise LimitReached(
                f"the memory limits of this key's sandboxes add up to {have_bytes // MIB} MiB, "
                f"with this one {(have_bytes + asked.memory_bytes) // MIB} MiB; at most {allowed_mib} MiB are allowed",
                hint="close some, or ask for less with memory_mib",
                details={"limit": "memory_mib", "allowed": allowed_mib},
            )

    def _check_machine(self, asked: Reservation, allowance: Allowance) -> None:
        """The bounds of the server for all owners together. The message does not say how much the others have."""
        living, leaving = self._living(None), self._leaving(None)
        have, most = len(living) + sum(other.sandboxes for other in self._reserved), allowance.all_sandboxes
        if most is not None and have + asked.sandboxes + max(len(leaving) - most, 0) > most:
            raise LimitReached(
                f"the server is full: it has at most {most} sandboxes at once, of all keys together",
                hint=f"try again when some have ended; its operator can raise {MAX_SANDBOXES}",
                details={"limit": "all_sandboxes", "allowed": most},
            )
        have_bytes = sum(living) + sum(other.memory_bytes for other in self._reserved)
        most = allowance.all_memory_bytes
        if most is not None and asked.memory_bytes > most:  # even an empty server would have no room for it
            raise LimitReached(
                f"the sandboxes of this server may use at most {most // MIB} MiB, of all keys together, and this asks "
                f"for {asked.memory_bytes // MIB} MiB",
                hint=f"ask for less with memory_mib; the server's operator can raise {MAX_MEMORY}",
                details={"limit": "all_memory_mib", "allowed": most // MIB},
            )
        if most is not None and have_bytes + asked.memory_bytes + max(sum(leaving) - most, 0) > most:
            raise LimitReached(
                f"the server is full: its sandboxes may use at most {most // MIB} MiB, of all keys together, "
                f"and this one asks for {asked.memory_bytes // MIB} MiB more",
                hint=f"ask for less with memory_mib, or try again when some have ended; its operator can raise "
                f"{MAX_MEMORY}",
                details={"limit": "all_memory_mib", "allowed": most // MIB},
            )

    @contextmanager
    def boot(self, owner: str, name: str, allowance: Allowance, known: Iterable[str]) -> Iterator[None]:
        """Inside, a template of the owner's own is being made, and counts. Raises LimitReached."""
        self.check_template(owner, name, allowance, known)
        self._booting[owner, name] += 1
        try:
            yield
        finally:
            self._booting -= Counter([(owner, name)])  # subtraction drops counts of zero

    def check_template(self, owner: str, name: str, allowance: Allowance, known: Iterable[str]) -> None:
        """Raise LimitReached if the owner may not have one more; ``known``: the names it has."""
        names = {*known, *(booting for of, booting in self._booting if of == owner)}
        if allowance.templates is not None and name not in names and len(names) >= allowance.templates:
            raise LimitReached(
                f"this key has {len(names)} templates of its own; its limit is {allowance.templates}",
                hint=f"use one of them: {', '.join(sorted(names)) or 'none'}",
                details={"limit": "templates", "allowed": allowance.templates},
            )


class Reservation:
    """Quota for sandboxes that are being made. Releasing it twice is harmless."""

    def __init__(
        self, among: set[Reservation], owner: str, sandboxes: int, memory_bytes: int, hidden: bool = False
    ) -> None:
        self._among = among
        self.owner = owner
        self.sandboxes = sandboxes
        self.memory_bytes = memory_bytes
        self.hidden = hidden

    def release(self) -> None:
        self._among.discard(self)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _of_which(taken: Iterable[Reservation]) -> str:
    """Hidden ones are in no list of the owner's, so the message names them."""
    hidden = sum(reservation.hidden for reservation in taken)
    return f", {hidden} of them to install packages" if hidden else ""
