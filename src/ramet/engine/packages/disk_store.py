"""A store of packages in a folder of the owner, so that the next engine finds them, too.

    FOLDER/KEY/tree          the files, as they lie below a prefix
    FOLDER/KEY/about.json    the packages in it and its size
    FOLDER/new-...           a tree that is being written; renamed to its key when it is complete
    FOLDER/gone-...          a tree that is being removed

Several engines of one owner may use the folder at once. Each tree appears and disappears by one rename, which is
atomic: no engine ever sees half a tree under a key.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from time import monotonic

from ramet.engine.packages.tree_copies import Size, copy_tree, measure
from ramet.engine.packages.trees import (
    ABOUT_BYTES_AT_MOST,
    IN_USE_SECONDS,
    TREE_BYTES_AT_LEAST,
    About,
    Kept,
    NoRoom,
    OpenFolder,
    TreeMount,
)
from ramet.isolation.files.walks import Stop, Walks

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEY = re.compile(r"[0-9a-f]{64}")
_MOUNTS_AT_MOST = 64
_LEFT_BEHIND_SECONDS = 24 * 3600.0
_FREE_SHARE = 10  # a tenth of the disk is left to others


class DiskStore:
    """Owns a writable mount of the folder, which only the engine has, and a read-only mount of each tree in use.

    ``_turn`` serialises opening and storing within this engine. Two tasks would otherwise mount the same tree twice, or
    both make room for trees of which only one then fits.
    """

    def __init__(self, path: str, folder: int, open_folder: OpenFolder, limit_bytes: int, walks: Walks) -> None:
        self._path = path
        self._folder = folder
        self._open_folder = open_folder
        self._limit_bytes = limit_bytes
        self._walks = walks
        self._kept: dict[str, Kept] = {}
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, path: str, open_folder: OpenFolder, limit_bytes: int, walks: Walks | None = None) -> DiskStore:
        """Open the folder and remove what killed engines left. Raises OSError or RametError if it is not writable."""
        mount = await open_folder(path, True)
        try:
            folder = os.open(".", _FOLDER, dir_fd=mount)
        finally:
            os.close(mount)
        try:
            await asyncio.to_thread(_sweep, folder)
        except BaseException:
            os.close(folder)
            raise
        return cls(path, folder, open_folder, limit_bytes, walks or Walks())

    def __repr__(self) -> str:
        return f"<DiskStore {self._path}, {len(self._kept)} trees in use>"

    @property
    def tree_bytes(self) -> int:
        return self._limit_bytes // 2

    async def find(self, key: str) -> Kept | None:
        known = self._kept.get(key)
        if known is not None:
            # Touching marks it as in use for all engines, and fails if another engine has removed it.
            if _touch(self._folder, key):
                known.used = monotonic()
                return known
            del self._kept[key]
        async with self._turn:
            # Looked up again: another task may have opened it while we waited for our turn.
            return self._kept.get(key) or await self._open(key)

    async def _open(self, key: str) -> Kept | None:
        found = await asyncio.to_thread(_read, self._folder, key)
        if found is None:
            return None
        about, size_bytes = found
        mount = await self._open_folder(f"{self._path}/{key}/tree", False)
        # Each mount costs a descriptor. A dropped one stays open while a request still refers to it: see Mount.
        for old in list(self._kept)[: max(0, len(self._kept) - _MOUNTS_AT_MOST + 1)]:
            del self._kept[old]
        kept = self._kept[key] = Kept(about, TreeMount(mount), size_bytes)
        return kept

    async def keep(self, key: str, tree: int, about: About, owner: str) -> Kept:
        async with self._turn:
            await self._walks.run(owner, lambda stop: self._keep(key, tree, about, stop))
            kept = await self._open(key)
            if kept is None:  # another engine needed the room
                raise NoRoom("it was removed as soon as it was stored")
            return kept

    def _keep(self, key: str, tree: int, about: About, stop: Stop) -> None:
        size = measure(tree, self.tree_bytes, stop)
        self._make_room(size.size_bytes)
        new = f"new-{secrets.token_hex(8)}"
        os.mkdir(new, 0o700, dir_fd=self._folder)
        try:
            inner = os.open(new, _FOLDER, dir_fd=self._folder)
            try:
                _write(inner, tree, about, size, stop)
            finally:
                os.close(inner)
            self._put(new, key)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True, dir_fd=self._folder)
            raise

    def _put(self, new: str, key: str) -> None:
        """Rename a finished tree to its key, unless another engine has stored one meanwhile, which is as good.

        The rename comes first: the kernel refuses to replace a folder that is not empty. To look first and remove a
        damaged tree could remove a good one that another engine has put there in between.
        """
        try:
            os.rename(new, key, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if _read(self._folder, key) is not None:
                shutil.rmtree(new, ignore_errors=True, dir_fd=self._folder)
                return
            _remove(self._folder, key)  # it is damaged: a killed engine, or a full disk
            os.rename(new, key, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def _make_room(self, size_bytes: int) -> None:
        kept = sorted(_all_kept(self._folder))
        total = sum(size for _, _, size in kept)
        disk = os.fstatvfs(self._folder)
        spare = (disk.f_bavail - disk.f_blocks // _FREE_SHARE) * disk.f_frsize
        excess = max(total + size_bytes - self._limit_bytes, size_bytes - spare)
        for used, key, size in kept:
            if excess <= 0:
                return
            # A sandbox of any engine may be copying a tree that was touched recently.
            if time.time() - used > IN_USE_SECONDS:
                _remove(self._folder, key)
                excess -= size
        if excess > 0:
            raise NoRoom("the disk is nearly full, or every stored package is in use")

    def close(self) -> None:
        self._kept.clear()
        os.close(self._folder)


def _write(folder: int, tree: int, about: About, size: Size, stop: Stop) -> None:
    size_bytes = max(size.size_bytes, TREE_BYTES_AT_LEAST)
    os.mkdir("tree", 0o755, dir_fd=folder)
    target = os.open("tree", _FOLDER, dir_fd=folder)
    try:
        os.fchmod(target, 0o755)
        copy_tree(tree, target, size, stop)
    finally:
        os.close(target)
    descriptor = os.open("about.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump({"base": about.base, "added": about.added, "size_bytes": size_bytes}, file, sort_keys=True)


def _read(folder: int, key: str) -> tuple[About, int] | None:
    try:
        descriptor = os.open(f"{key}/about.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        data = file.read(ABOUT_BYTES_AT_MOST + 1)
    try:
        size_bytes = json.loads(data).get("size_bytes")
        about = About.read(data)
    except (ValueError, AttributeError):
        return None
    return (about, size_bytes) if isinstance(size_bytes, int) and _touch(folder, key) else None


def _touch(folder: int, key: str) -> bool:
    """Mark a tree as used now. False if it does not exist."""
    try:
        os.utime(key, dir_fd=folder)
    except OSError:
        return False
    return True


def _all_kept(folder: int) -> list[tuple[float, str, int]]:
    """The time of last use, the key and the size of each tree."""
    found = []
    for name in os.listdir(folder):
        with suppress(OSError, ValueError, AttributeError, TypeError):
            if _KEY.fullmatch(name):
                used = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
                descriptor = os.open(f"{name}/about.json", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
                with open(descriptor, "rb") as file:
                    found.append((used, name, int(json.loads(file.read(ABOUT_BYTES_AT_MOST)).get("size_bytes"))))
    return found


def _remove(folder: int, name: str) -> None:
    # Renamed first, so that no other engine finds a tree that is half removed.
    gone = f"gone-{secrets.token_hex(8)}"
    with suppress(OSError):
        os.rename(name, gone, src_dir_fd=folder, dst_dir_fd=folder)
        shutil.rmtree(gone, ignore_errors=True, dir_fd=folder)


def _sweep(folder: int) -> None:
    """Remove what killed engines left. Only old entries: a young one may belong to an engine that is still at work."""
    for name in os.listdir(folder):
        with suppress(OSError):
            old = time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _LEFT_BEHIND_SECONDS
            if old and name.startswith(("new-", "gone-")):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
