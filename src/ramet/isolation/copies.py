"""Copies of folders into file systems of their own: a tmpfs that is mounted nowhere and known by its descriptor."""

from __future__ import annotations

import array
import contextlib
import os
from collections.abc import Iterator

from ramet.isolation import _files

_SLACK_BYTES = 16 << 20
_SLACK_INODES = 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = "links"  # where copy_tree keeps hard links while it works; no folder of ours has this name


class Copy:
    """A tmpfs on its way to being an image or a layer. Closed at the end of `with`, unless it was kept."""

    def __init__(self, used_bytes: int, used_inodes: int) -> None:
        """With room for a copy of so much."""
        self.mount = _files.make_tmpfs(used_bytes + used_bytes // 16 + _SLACK_BYTES, used_inodes + _SLACK_INODES)
        self.size_bytes = 0
        self.entries = 0
        self.folders = 0
        self.numbers = array.array("Q")  # inode numbers that the originals had, in the order of the copies
        self._kept = False
        os.mkdir(_LINKS, 0o700, dir_fd=self.mount)

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            os.close(self.mount)

    def add(self, source: int, name: str, new_name: str, numbers: bool = False) -> int:
        """A folder, with all that is in it; below what was added under that name before. How many entries."""
        fill = new_name in self.names()
        if not fill:
            os.mkdir(new_name, 0o700, dir_fd=self.mount)
        with folder(source, name) as original, folder(self.mount, new_name) as target:
            with folder(self.mount, _LINKS) as links:
                size, entries, folders, made = _files.copy_tree(original, target, links, fill, numbers)
        self.size_bytes += size
        self.entries += entries
        self.folders += folders
        self.numbers.frombytes(made)
        return entries

    def add_file(self, source: int, name: str, path: str) -> int:
        """One file, with the folders it is in but nothing else of them; how many bytes."""
        with contextlib.ExitStack() as opened:
            original, target = source, self.mount
            tops: list[tuple[int, int]] = []
            *parents, last = [name, *path.split("/")]
            for parent in parents:
                original = opened.enter_context(folder(original, parent))
                try:
                    os.mkdir(parent, 0o700, dir_fd=target)
                    if tops:  # the folders of overlays are there before any numbers are given out
                        self.numbers.append(0)
                except FileExistsError:
                    pass
                target = opened.enter_context(folder(target, parent))
                tops.append((original, target))
            self.numbers.append(os.stat(last, dir_fd=original, follow_symlinks=False).st_ino)
            size = _files.copy_file(original, target, last)
            for pair in tops:  # now that nothing more is made in them, which would change their times
                _files.copy_top(*pair)
        self.size_bytes += size
        return size

    def names(self) -> set[str]:
        return set(names_in(self.mount)) - {_LINKS}

    def remove(self, name: str) -> None:
        """A folder that is empty."""
        os.rmdir(name, dir_fd=self.mount)

    def write_numbers(self) -> None:
        """For the builder of pods, as the file `numbers`."""
        descriptor = os.open("numbers", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.mount)
        try:
            os.write(descriptor, self.numbers.tobytes())
        finally:
            os.close(descriptor)

    def keep(self, sealed: bool = False) -> int:
        """The descriptor, which is the caller's from now on."""
        os.rmdir(_LINKS, dir_fd=self.mount)
        if sealed:
            _files.seal(self.mount)
        self._kept = True
        return self.mount


@contextlib.contextmanager
def folder(parent: int, name: str) -> Iterator[int]:
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names_in(parent: int) -> list[str]:
    with folder(parent, ".") as again:
        return os.listdir(again)


def used(file_system: int) -> tuple[int, int]:
    """Bytes and inodes."""
    found = os.fstatvfs(file_system)
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree
