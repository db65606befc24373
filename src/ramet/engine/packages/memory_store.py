"""A store of packages in memory, for engines that may not write to a folder of the host. It ends with the engine."""

from __future__ import annotations

import asyncio
import gc
import os
from time import monotonic

from ramet.engine.packages.tree_copies import Size, copy_tree, measure
from ramet.engine.packages.trees import TREE_BYTES_AT_LEAST, About, Kept, NoRoom, TreeMount
from ramet.isolation.files.walks import Stop, Walks

_SPARE_BYTES = 1 << 20
_SPARE_INODES = 16


class MemoryStore:
    """Owns its trees, each in a tmpfs of its own.

    ``_turn`` serialises ``keep``: two tasks could otherwise both find room for trees that do not fit together, or copy
    the same tree twice.
    """

    def __init__(self, limit_bytes: int, walks: Walks | None = None) -> None:
        self._walks = walks or Walks()
        self._limit_bytes = limit_bytes
        self._kept: dict[str, Kept] = {}
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._kept)} trees, {self._used_bytes() >> 20} of {self._limit_bytes >> 20} MiB>"

    @property
    def tree_bytes(self) -> int:
        return self._limit_bytes // 2

    def _used_bytes(self, owner: str | None = None) -> int:
        return sum(kept.size_bytes for kept in self._kept.values() if owner in (None, kept.owner))

    async def find(self, key: str) -> Kept | None:
        kept = self._kept.get(key)
        if kept is not None:
            kept.used = monotonic()
        return kept

    async def keep(self, key: str, tree: int, about: About, owner: str) -> Kept:
        async with self._turn:
            found = self._kept.get(key)
            if found is not None:
                return found
            size = await self._walks.run(owner, lambda stop: measure(tree, self.tree_bytes, stop))
            size_bytes = max(size.size_bytes, TREE_BYTES_AT_LEAST)
            # An owner gets at most half, so that others are never left with nothing.
            bounds = ((self.tree_bytes, owner), (self._limit_bytes, None))
            if not all(self._make_room(size_bytes, limit_bytes, whose) for limit_bytes, whose in bounds):
                # `borrowers` is a weak set: bodies that have ended stay in it while only reference cycles hold them.
                gc.collect()
                if not all(self._make_room(size_bytes, limit_bytes, whose) for limit_bytes, whose in bounds):
                    raise NoRoom("every package stored in memory is in use")
            mount = await self._walks.run(owner, lambda stop: _copy(tree, size, stop), os.close)
            kept = self._kept[key] = Kept(about, TreeMount(mount), size_bytes, owner)
            return kept

    def _make_room(self, size_bytes: int, limit_bytes: int, owner: str | None) -> bool:
        """Drop the least recently used trees of an owner, or of all, until there is room. False if there is none."""
        for key, kept in sorted(self._kept.items(), key=lambda item: item[1].used):
            if self._used_bytes(owner) + size_bytes <= limit_bytes:
                return True
            # A tmpfs lives as long as a descriptor of it: while a sandbox may hold one, dropping it frees nothing.
            if owner in (None, kept.owner) and not kept.borrowers:
                del self._kept[key]
        return self._used_bytes(owner) + size_bytes <= limit_bytes

    def close(self) -> None:
        self._kept.clear()


def _copy(tree: int, size: Size, stop: Stop) -> int:
    from ramet.isolation import _files  # imported here: engines without walls, in some tests, lack this extension

    mount = _files.make_tmpfs(size.size_bytes + _SPARE_BYTES, size.entries + _SPARE_INODES)
    try:
        target = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
        try:
            os.fchmod(target, 0o755)
            copy_tree(tree, target, size, stop)
        finally:
            os.close(target)
        _files.seal(mount)
    except BaseException:
        os.close(mount)
        raise
    return mount
