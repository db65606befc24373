"""Computes a digest of a value's content: equal in any process for equal content; a change deep inside changes it.

The walk is a loop with a stack of its own, so that a linked list of thousands does not exhaust Python's, and it checks
the clock as it goes. `forms` takes each kind of value apart, which may run user code (`__reduce_ex__`).
"""

from __future__ import annotations

from _blake2 import blake2b  # what hashlib uses, imported directly
from collections.abc import Callable, Iterator
from typing import Any

from ramet_guest.comparing.forms import form_of
from ramet_guest.comparing.pieces import Piece, ValueForm, atom

DIGEST_BYTES = 16
STEPS_BETWEEN_LOOKS = 64
MANY_BYTES = 1 << 20
# Each level takes about a kilobyte.
DEEPEST = 100_000
# How many values are remembered, and kept alive, so that a value met again is not walked again.
REMEMBERED = 50_000
NUMBERED = 200_000


class OutOfTime(BaseException):
    """Raised when the walk cannot be finished.

    A BaseException, so that no `except Exception` of walked code swallows it.
    """


class Node:
    """A value that is being walked."""

    __slots__ = ("children", "depth", "hasher", "key", "local", "lowest", "total", "value")

    def __init__(self, value: Any, form: ValueForm, depth: int) -> None:
        self.value = value
        self.key = id(value)
        self.depth = depth
        # The highest ancestor that something inside refers back to.
        self.lowest = depth
        # True if something inside refers to a value met before: the digest is then valid in this place only.
        self.local = False
        self.children: Iterator[Any] = form.children
        self.hasher = blake2b(form.tag, digest_size=DIGEST_BYTES)
        # The sum of the children's digests if they have no order: sorting a large set would take as much memory again.
        self.total: int | None = 0 if form.unordered else None

    def add(self, data: bytes) -> None:
        if self.total is None:
            self.hasher.update(data)
        else:
            self.total += int.from_bytes(blake2b(data, digest_size=DIGEST_BYTES).digest(), "little")

    def digest(self) -> bytes:
        if self.total is not None:
            self.hasher.update(b"%d" % self.total)
        return self.hasher.digest()


class Met:
    """Values that one walk has met: ancestors by depth, members of cycles by number.

    A member of a cycle looks different from each place it is reached from. Walking it again from each would take for
    ever where everything refers to everything, as in a matplotlib figure. So it is walked once and referred to by
    number afterwards.
    """

    def __init__(self) -> None:
        self.active: dict[int, int] = {}
        self.numbered: dict[int, tuple[int, Any]] = {}  # keeps the value alive, so that its id is not reused

    def number(self, node: Node) -> None:
        if len(self.numbered) >= NUMBERED:
            raise OutOfTime
        self.numbered[node.key] = (len(self.numbered), node.value)


class Walk:
    """Computes digests of values until the time is up. `now` and `deadline` are in seconds."""

    def __init__(self, now: Callable[[], float], deadline: float) -> None:
        self._now = now
        self.deadline = deadline
        self._steps = 0
        # Digests of values that contain no outside references, shared by all walks.
        self._known: dict[int, tuple[bytes, Any]] = {}

    def digest(self, value: Any) -> str:
        """Returns the digest. Raises OutOfTime."""
        met = Met()
        # The root holds the value, so that atoms need no special case.
        stack = [Node(None, ValueForm(b"value", iter((value,))), 0)]
        while True:
            node = stack[-1]
            below = self._advance(node, len(stack), met)
            if below is not None:
                stack.append(below)
                continue
            stack.pop()
            digest = node.digest()
            if not stack:
                return digest.hex()
            self._leave(node, digest, stack[-1], met)

    def _advance(self, node: Node, deep: int, met: Met) -> Node | None:
        """Continues with a node up to the next child that has to be walked itself; returns None when it is done."""
        try:
            for child in node.children:
                self._steps += 1
                if self._steps % STEPS_BETWEEN_LOOKS == 0:
                    self._look()
                if type(child) is Piece:
                    node.hasher.update(child.data)
                    if len(child.data) >= MANY_BYTES:
                        self._look()
                elif (data := atom(child)) is not None:
                    node.add(data)
                elif not self._has_met(child, node, met):
                    return self._enter(child, node, deep, met)
        except Exception:
            # Another thread changed a dictionary, or a user's iterator failed: no digest could be trusted.
            raise OutOfTime from None
        return None

    def _has_met(self, child: Any, node: Node, met: Met) -> bool:
        key = id(child)
        depth = met.active.get(key)
        if depth is not None:
            # The distance and not the identity, so that equal cycles have equal digests.
            node.add(b"up %d;" % (node.depth - depth))
            node.lowest = min(node.lowest, depth)
        elif key in met.numbered:
            node.add(b"met %d;" % met.numbered[key][0])
            node.local = True
        elif key in self._known:
            node.add(b"n" + self._known[key][0])
        else:
            return False
        return True

    def _enter(self, child: Any, node: Node, deep: int, met: Met) -> Node:
        if deep > DEEPEST:
            raise OutOfTime
        met.active[id(child)] = node.depth + 1
        return Node(child, form_of(child), node.depth + 1)

    def _leave(self, node: Node, digest: bytes, above: Node, met: Met) -> None:
        """Adds a finished node's digest to its parent, and remembers it for the next time the value is met."""
        met.active.pop(node.key, None)
        above.add(b"n" + digest)
        above.lowest = min(above.lowest, node.lowest)
        above.local = above.local or node.local
        # A digest that depends on where the walk came from is valid in this walk only; others are valid in all walks.
        if node.local or node.lowest < node.depth:
            met.number(node)
        elif len(self._known) < REMEMBERED:
            self._known[node.key] = (digest, node.value)

    def _look(self) -> None:
        if self._now() > self.deadline:
            raise OutOfTime
