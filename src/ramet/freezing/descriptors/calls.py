"""The list of system calls that makes descriptors again. It contains no decisions: each call's result is known before.

A new descriptor takes the lowest free number. The list starts with an empty table, except for the guest's three lines,
and moves each descriptor away as soon as it is made. So a call that makes one returns 0, and one that makes two makes 0
and 1. Each waits in a slot, a number that is not needed otherwise, until all are made and the wanted numbers can be
assigned.
"""

from __future__ import annotations

from collections.abc import Iterable

from ramet.freezing.calls import InjectedCall, call
from ramet.freezing.descriptors.target import LINE_NUMBERS

O_CLOEXEC = 0o2000000
F_SETFD, F_SETFL, F_DUPFD_CLOEXEC = 2, 4, 1030
# The flags that F_SETFL can change: O_APPEND, O_NONBLOCK, O_DIRECT, O_NOATIME (and O_ASYNC, which is not kept).
SETTABLE_FLAGS = 0o1046000


class CallList:
    """A list of calls under construction, and the slots in use."""

    def __init__(self, taken: Iterable[int]) -> None:
        self.calls: list[InjectedCall] = []
        # Slots must avoid every number that will be assigned later: dup3 onto one would close what is there.
        self._taken = {*taken, *LINE_NUMBERS}
        self._next = max(LINE_NUMBERS) + 1
        self._slots: set[int] = set()
        self._dead: int | None = None

    def call(
        self, name: str, system_call: str, *arguments: int | bytes, must_work: bool = True, whole: bool = False
    ) -> None:
        # Flags are subclasses of int.
        plain = tuple(each if isinstance(each, bytes) else int(each) for each in arguments)
        self.calls.append(call(name, system_call, *plain, must_work=must_work, whole=whole))

    def create(self, name: str, system_call: str, *arguments: int | bytes) -> int:
        """Add a call that makes one descriptor. Returns its slot."""
        self.call(name, system_call, *arguments)
        return self._put_away(name, 0)

    def create_pair(self, name: str, system_call: str, *arguments: int | bytes) -> tuple[int, int]:
        """Add a call that makes two descriptors. Returns their slots."""
        self.call(name, system_call, *arguments)
        return self._put_away(name, 0), self._put_away(name, 1)

    def try_create(self, name: str, system_call: str, *arguments: int | bytes) -> int:
        """Like create, but a descriptor that cannot be made becomes a dead one."""
        # The dead descriptor first: if the call fails, the next two fail as well (0 is not open) and change nothing.
        slot = self.copy(name, self.dead())
        self.call(name, system_call, *arguments, must_work=False)
        self.call(name, "dup3", 0, slot, O_CLOEXEC, must_work=False)
        self.call(name, "close", 0, must_work=False)
        return slot

    def copy(self, name: str, descriptor: int) -> int:
        """Duplicate a descriptor to a new slot."""
        slot = self._new_slot()
        self.call(name, "dup3", descriptor, slot, O_CLOEXEC)
        return slot

    def dead(self) -> int:
        """A descriptor that reads as at end-of-file and refuses writes.

        Never /dev/null, which accepts data and reports success.
        """
        if self._dead is None:
            # The other end is closed: reading gives end-of-file, writing EPIPE.
            self._dead, other = self.create_pair("make a dead descriptor", "socketpair", 1, 1 | O_CLOEXEC, 0, bytes(8))
            self.drop(other)
        return self._dead

    def drop(self, slot: int) -> None:
        self.call("close a slot", "close", slot)
        self._slots.discard(slot)

    def set_flags(self, name: str, slot: int, flags: int) -> None:
        self.call(name, "fcntl", slot, F_SETFL, flags & SETTABLE_FLAGS)

    def write_all(self, name: str, slot: int, data: bytes, offset: int) -> None:
        """Write data at an offset; if not all of it fits, the call fails."""
        self.call(name, "pwrite64", slot, data, len(data), offset, whole=True)

    def close_slots(self) -> None:
        """Close all slots, in as few calls as possible."""
        for first, last in _runs(sorted(self._slots)):
            self.call("close the slots", "close_range", first, last, 0)
        self._slots.clear()

    def _put_away(self, name: str, descriptor: int) -> int:
        slot = self.copy(name, descriptor)
        self.call(name, "close", descriptor)
        return slot

    def _new_slot(self) -> int:
        while self._next in self._taken:
            self._next += 1
        slot = self._next
        self._next += 1
        self._slots.add(slot)
        return slot


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Join neighbouring numbers to ranges."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
