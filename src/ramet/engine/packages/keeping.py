"""Where trees of packages are kept, and how one is given away: a mount that nobody can write through.

It is mounted nowhere. Whoever holds its descriptor sees the tree and nothing beside or above it, whatever it is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol
from weakref import WeakSet

from ramet.engine.seams import Body

# A tree on disk that is being copied by a sandbox must not vanish under it.
IN_USE_SECONDS = 600.0
ABOUT_BYTES_AT_MOST = 1 << 20
_PACKAGES_AT_MOST = 5000

# A folder of the host as a mount: its path, and whether it can be written.
OpenFolder = Callable[[str, bool], Awaitable[int]]


# What a tree counts at least: a descriptor of the engine's, a file system or some folders. Otherwise trees with nothing
# in them could be had without end.
TREE_BYTES_AT_LEAST = 1 << 20


class NoRoom(Exception):
    """What was made is not kept."""


@dataclass(frozen=True, slots=True)
class About:
    """What a tree says of itself: the packages that were there when it was made, and those in it, with versions."""

    base: dict[str, str]
    added: dict[str, str]
    index: str | None = None  # where pip looks if nobody says otherwise

    @classmethod
    def read(cls, data: bytes) -> About:
        """Raises ValueError."""
        if len(data) > ABOUT_BYTES_AT_MOST:
            raise ValueError("too long")
        try:
            found = json.loads(data)
        except RecursionError:
            raise ValueError("too deep") from None
        if not isinstance(found, dict):
            raise ValueError("not an object")
        index = found.get("index")
        return cls(_versions(found.get("base")), _versions(found.get("added")), index if type(index) is str else None)


def _versions(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or len(found) > _PACKAGES_AT_MOST:
        raise ValueError("no packages, or too many")
    if not all(isinstance(name, str) and isinstance(version, str) for name, version in found.items()):
        raise ValueError("packages that are not texts")
    return found


class Mount:
    """A descriptor that is closed when nobody refers to it any more.

    Not before: a number that was closed may be another file's by the time it is given to a sandbox.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


@dataclass(slots=True, eq=False)
class Kept:
    """A tree that can be given away."""

    about: About
    mount: Mount
    size_bytes: int
    owner: str = ""
    used: float = field(default_factory=monotonic)
    # Each may hold on to it for as long as it lives, under whatever id: it is gone from here when the engine has let
    # go of it.
    borrowers: WeakSet[Body] = field(default_factory=WeakSet)


class Store(Protocol):
    """Trees by key. What is under a key never changes."""

    @property
    def tree_bytes(self) -> int:
        """The largest tree that is kept."""

    async def find(self, key: str) -> Kept | None: ...
    async def keep(self, key: str, tree: int, about: About, owner: str) -> Kept:
        """A copy of what is in a folder. Raises NoRoom, TooMuch or OSError."""

    def close(self) -> None: ...
