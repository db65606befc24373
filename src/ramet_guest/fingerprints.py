"""A digest of a value's content: equal content, equal digest, in any process; a change deep inside changes it.

The walk is a loop with a stack of its own, so a linked list of thousands is no danger, and it looks at the clock as it
goes. How each kind of value is taken apart is in `forms`. May run user code (`__reduce_ex__`).
"""

from __future__ import annotations

from _blake2 import blake2b  # hashlib's own, without the detour
from collections.abc import Callable, Iterator
from typing import Any

from ramet_guest.forms import form_of
from ramet_guest.pieces import Form, Piece, atom

DIGEST_BYTES = 16
STEPS_BETWEEN_LOOKS = 64
MANY_BYTES = 1 << 20
# Each level takes about a kilobyte.
DEEPEST = 100_000
# A value that is met again is not walked again; so many are remembered, and kept alive for it.
REMEMBERED = 50_000
NUMBERED = 200_000


class OutOfTime(BaseException):
    """The walk cannot be finished. No `except Exception` of a walked object's code may swallow it."""


class Node:
    """A value that is being walked."""

    __slots__ = ("children", "depth", "hasher", "key", "local", "lowest", "total", "value")

    def __init__(self, value: Any, form: Form, depth: int) -> None:
        self.value = value
        self.key = id(value)
        self.depth = depth
        # The highest ancestor that something inside refers back to.
        self.lowest = depth
        # Something inside refers to what was met before: the digest holds in this place only.
        self.local = False
        self.children: Iterator[Any] = form.children
        self.hasher = blake2b(form.tag, digest_size=DIGEST_BYTES)
        # The sum of the digests of what has no order: sorting a large set would take as much memory again.
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
    """What one walk has met: ancestors by their depth, parts of cycles by number.

    A part of a cycle looks different from each place it is reached from. To walk it again from each would take for ever
    where all refer to all, as in a figure of matplotlib; so it is walked once, and called by its number afterwards.
    """

    def __init__(self) -> None:
        self.active: dict[int, int] = {}
        self.numbered: dict[int, tuple[int, Any]] = {}  # the value is kept alive: its id must stay its own

    def number(self, node: Node) -> None:
        if len(self.numbered) >= NUMBERED:
            raise OutOfTime
        self.numbered[node.key] = (len(self.numbered), node.value)


class Walk:
    """Digests of values, until the time is up. `now` and `deadline` are in seconds."""

    def __init__(self, now: Callable[[], float], deadline: float) -> None:
        self._now = now
        self.deadline = deadline
        self._steps = 0
        # What is whole in itself, for all values that are walked.
        self._known: dict[int, tuple[bytes, Any]] = {}

    def digest(self, value: Any) -> str:
        """Raises OutOfTime."""
        met = Met()
        # A root that holds the value: then atoms need no case of their own.
        stack = [Node(None, Form(b"value", iter((value,))), 0)]
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
        """Goes on with a node up to the next value in it that has to be walked itself; None when it is done."""
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
            # A dictionary that another thread changed, a user's iterator that fails: no digest could be trusted.
            raise OutOfTime from None
        return None

    def _has_met(self, child: Any, node: Node, met: Met) -> bool:
        key = id(child)
        depth = met.active.get(key)
        if depth is not None:
            # How far up, not which: so equal cycles have equal digests.
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
        met.active.pop(node.key, None)
        above.add(b"n" + digest)
        above.lowest = min(above.lowest, node.lowest)
        above.local = above.local or node.local
        if node.local or node.lowest < node.depth:
            met.number(node)
        elif len(self._known) < REMEMBERED:
            self._known[node.key] = (digest, node.value)

    def _look(self) -> None:
        if self._now() > self.deadline:
            raise OutOfTime
