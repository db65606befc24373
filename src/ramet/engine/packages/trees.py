"""The interface of package stores, and the form in which a sandbox gets a tree: a read-only, detached mount.

The mount is attached nowhere. A process that holds its descriptor sees the tree, and nothing beside or above it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import field
from time import monotonic
from typing import Protocol
from weakref import WeakSet

from ramet.engine.seams import Body
from ramet.protocol.lazy_dataclasses import dataclass

# A tree on disk that was used this recently is not removed: a sandbox may be copying it.
IN_USE_SECONDS = 600.0
ABOUT_BYTES_AT_MOST = 1 << 20
_PACKAGES_AT_MOST = 5000

# Opens a folder of the host as a mount: its path, and whether it is writable.
OpenFolder = Callable[[str, bool], Awaitable[int]]


# The least that a tree counts, for the engine's descriptor and the file system. Otherwise a sandbox could have empty
# trees without end.
TREE_BYTES_AT_LEAST = 1 << 20


class NoRoom(Exception):
    """The store has no room for a tree."""


@dataclass(frozen=True, slots=True)
class About:
    """The contents of a tree: the packages that were there when it was made, and those it adds, with versions."""

    base: dict[str, str]
    added: dict[str, str]
    index: str | None = None  # pip's default index

    @classmethod
    def read(cls, data: bytes) -> About:
        """Read what an untrusted sandbox wrote. Raises ValueError."""
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


class TreeMount:
    """A descriptor that is closed with its last reference.

    Not earlier: a task may be about to send it to a sandbox, and a closed number can by then be another file, perhaps
    of another sandbox.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


@dataclass(slots=True, eq=False)
class Kept:
    """A stored tree, ready to be given to sandboxes."""

    about: About
    mount: TreeMount
    size_bytes: int
    owner: str = ""
    used: float = field(default_factory=monotonic)
    # Bodies that got the descriptor. Each may keep it as long as it lives, under whatever id; a weak set, so a body
    # leaves it when the engine drops the body.
    borrowers: WeakSet[Body] = field(default_factory=WeakSet)


class Store(Protocol):
    """Trees by key. The tree of a key never changes."""

    @property
    def tree_bytes(self) -> int:
        """The size of the largest tree that the store accepts."""

    async def find(self, key: str) -> Kept | None: ...
    async def keep(self, key: str, tree: int, about: About, owner: str) -> Kept:
        """Store a copy of the folder. Raises NoRoom, TooMuch or OSError."""

    def close(self) -> None: ...
