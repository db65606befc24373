"""The list of system calls that makes descriptors again. It holds no decisions: what each call returns is known before.

A new descriptor always takes the lowest free number. The list starts with an empty table but for the guest's three
lines, and moves each descriptor away as soon as it is made: so a call that makes one returns 0, one that makes two
makes 0 and 1. What is made waits in a slot until everything is there and the wanted numbers can be given out.
"""

from __future__ import annotations

from collections.abc import Iterable

from ramet.freezing.calls import Call, call
from ramet.freezing.descriptors.target import LINE_NUMBERS

O_CLOEXEC = 0o2000000
F_SETFD, F_SETFL, F_DUPFD_CLOEXEC = 2, 4, 1030
SETTABLE_FLAGS = 0o1046000  # what F_SETFL can change: O_APPEND, O_NONBLOCK, O_DIRECT, O_NOATIME (and O_ASYNC, not kept)


class Script:
    """A list of calls under construction, and which slots it has in use."""

    def __init__(self, taken: Iterable[int]) -> None:
        self.calls: list[Call] = []
        self._taken = {*taken, *LINE_NUMBERS}
        self._next = max(LINE_NUMBERS) + 1
        self._slots: set[int] = set()
        self._dead: int | None = None

    def call(self, name: str, system_call: str, *arguments: int | bytes, must_work: bool = True) -> None:
        plain = tuple(each if isinstance(each, bytes) else int(each) for each in arguments)  # flags are kinds of int
        self.calls.append(call(name, system_call, *plain, must_work=must_work))

    def create(self, name: str, system_call: str, *arguments: int | bytes) -> int:
        """The slot of the descriptor that the call makes."""
        self.call(name, system_call, *arguments)
        return self._put_away(name, 0)

    def create_pair(self, name: str, system_call: str, *arguments: int | bytes) -> tuple[int, int]:
        self.call(name, system_call, *arguments)
        return self._put_away(name, 0), self._put_away(name, 1)

    def try_create(self, name: str, system_call: str, *arguments: int | bytes) -> int:
        """Like create; what cannot be made is a dead descriptor."""
        slot = self.copy(name, self.dead())
        self.call(name, system_call, *arguments, must_work=False)
        self.call(name, "dup3", 0, slot, O_CLOEXEC, must_work=False)
        self.call(name, "close", 0, must_work=False)
        return slot

    def copy(self, name: str, descriptor: int) -> int:
        """One more number for the same description."""
        slot = self._new_slot()
        self.call(name, "dup3", descriptor, slot, O_CLOEXEC)
        return slot

    def dead(self) -> int:
        """Reads as at its end, refuses what is written: never a device that swallows data and says all is well."""
        if self._dead is None:
            self._dead, other = self.create_pair("make a dead descriptor", "socketpair", 1, 1 | O_CLOEXEC, 0, bytes(8))
            self.drop(other)
        return self._dead

    def drop(self, slot: int) -> None:
        self.call("close a slot", "close", slot)
        self._slots.discard(slot)

    def set_flags(self, name: str, slot: int, flags: int) -> None:
        self.call(name, "fcntl", slot, F_SETFL, flags & SETTABLE_FLAGS)

    def write_all(self, name: str, slot: int, data: bytes, offset: int) -> None:
        """The last byte goes by itself: a call that could only write a part of the rest leaves no room for it."""
        if len(data) > 1:
            self.call(name, "pwrite64", slot, data[:-1], len(data) - 1, offset)
        self.call(name, "pwrite64", slot, data[-1:], 1, offset + len(data) - 1)

    def close_slots(self) -> None:
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
    """Neighbouring numbers as ranges."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
