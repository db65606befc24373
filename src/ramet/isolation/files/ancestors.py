"""The files that copies of sandboxes began with: kept within bounds, and found again for two that are related."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

MOST_BYTES = 256 << 20  # of copies, in an engine
MOST_BYTES_OF_ONE = 32 << 20
MOST_IMAGES = 200  # each holds up to two descriptors
MOST_GENERATIONS = 64  # a sandbox that goes back to earlier states again and again has no end of ancestors


class Ancestor(Protocol):
    """The files of a sandbox at the moment when it was frozen."""

    number: int  # later ones have greater numbers
    copied_bytes: int
    source: object
    gone: bool

    @property
    def before(self) -> Ancestor | None: ...
    @property
    def is_empty(self) -> bool: ...
    def give_up(self) -> None: ...


class HasAncestors(Protocol):
    """The files of a pod."""

    identity: object

    @property
    def begun_with(self) -> Ancestor | None: ...


class KeptAncestors:
    """Which files of ended snapshots are still there. Those that ended first are given up first."""

    def __init__(self) -> None:
        self._kept: dict[Ancestor, None] = {}
        self._used: Counter[Ancestor] = Counter()
        self._bytes = 0
        # Held while files are released, too: images are closed by the loop and by the tracer's thread, and one whose
        # descriptors are about to be closed must not be taken into use, nor closed twice.
        self._lock = threading.Lock()

    def add(self, image: Ancestor) -> None:
        """Its snapshot has ended, and only its descendants hold it."""
        if image.is_empty:
            return  # it holds nothing that could be given up
        with self._lock:
            self._kept[image] = None
            self._bytes += image.copied_bytes
            self._fit()

    def _fit(self) -> None:
        """Give up those that are too large, and the oldest while there are too many. Called with the lock."""
        for oldest in list(self._kept):
            too_much = self._bytes > MOST_BYTES or len(self._kept) > MOST_IMAGES
            if (too_much or oldest.copied_bytes > MOST_BYTES_OF_ONE) and not self._used[oldest]:
                self._give_up(oldest)

    def give_up(self, image: Ancestor) -> None:
        """Its last user has dropped it."""
        with self._lock:
            self._give_up(image)

    def _give_up(self, image: Ancestor) -> None:
        if image in self._kept:
            del self._kept[image]
            self._bytes -= image.copied_bytes
        image.give_up()

    @contextlib.contextmanager
    def using(self, image: Ancestor) -> Iterator[bool]:
        """Inside, its files are not given up. False: they are gone already."""
        with self._lock:
            self._used[image] += 1
            there = not image.gone
        try:
            yield there
        finally:
            with self._lock:
                self._used -= Counter([image])
                self._fit()


def common_ancestor(one: HasAncestors, other: HasAncestors) -> Ancestor | None:
    """The newest files that both have descended from and that are still there. None: not known.

    An older state than the newest common one does little harm: what both have had in common since then counts as
    changed by both, and equal.
    """
    mine: dict[object, Ancestor | None] = {one.identity: None}  # pods, and the state of each that it descended from
    image = one.begun_with
    while image is not None:
        mine[image.source] = mine[image] = image
        image = image.before
    found = _newest_common(mine, other)
    while found is not None and found.gone:
        found = found.before
    return found


def _newest_common(mine: dict[object, Ancestor | None], other: HasAncestors) -> Ancestor | None:
    pod, image = other.identity, other.begun_with
    taken: Ancestor | None = None
    while True:
        if pod in mine:
            # Of two states of one pod the one that was taken first; None is its present.
            states = [state for state in (mine[pod], taken) if state is not None]
            return min(states, key=lambda state: state.number, default=None)
        if image is None or image in mine:
            return image
        pod, taken, image = image.source, image, image.before
