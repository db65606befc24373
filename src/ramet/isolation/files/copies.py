"""Copies of folders into a tmpfs of their own, which is mounted nowhere and known only by its descriptor."""

from __future__ import annotations

import array
import contextlib
import os
from collections.abc import Iterator

from ramet.isolation import _files

_SLACK_BYTES = 16 << 20
_SLACK_INODES = 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = "links"  # copy_tree links files here while it works, to find hard links again; no folder of ours has this name


class Copy:
    """A tmpfs that becomes an image or a layer. Closed at the end of `with`, unless `keep` was called."""

    def __init__(self, used_bytes: int, used_inodes: int) -> None:
        """Make the tmpfs with room for a copy of this size. Raises OSError."""
        # Block sizes and folder sizes differ between file systems, hence a sixteenth and a constant more. A guess.
        self.mount = _files.make_tmpfs(used_bytes + used_bytes // 16 + _SLACK_BYTES, used_inodes + _SLACK_INODES)
        self.size_bytes = 0
        self.entries = 0
        self.folders = 0
        self.numbers = array.array("Q")  # inode numbers of the originals, in the order in which the copies were made
        self._kept = False
        os.mkdir(_LINKS, 0o700, dir_fd=self.mount)

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            os.close(self.mount)

    def add(self, source: int, name: str, new_name: str, numbers: bool = False) -> int:
        """Copy a folder with everything in it. Returns how many entries were copied.

        If `new_name` was added before, this one counts as a layer below it: only what the earlier one lets show through
        is added.
        """
        fill = new_name in self.names()
        # copy_tree sets the real mode at the end.
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
        """Copy one file and its parent folders, but nothing else in them. Returns its size in bytes."""
        with contextlib.ExitStack() as opened:
            original, target = source, self.mount
            tops: list[tuple[int, int]] = []
            *parents, last = [name, *path.split("/")]
            for parent in parents:
                # One component at a time without following links, because the names are the sandbox's.
                original = opened.enter_context(folder(original, parent))
                try:
                    os.mkdir(parent, 0o700, dir_fd=target)
                    if tops:  # the builder of pods has made the overlays' own folders already, so these take no number
                        self.numbers.append(0)
                except FileExistsError:
                    pass
                target = opened.enter_context(folder(target, parent))
                tops.append((original, target))
            self.numbers.append(os.stat(last, dir_fd=original, follow_symlinks=False).st_ino)
            size = _files.copy_file(original, target, last)
            for pair in tops:  # only now: creating something in a folder changes its times
                _files.copy_top(*pair)
        self.size_bytes += size
        return size

    def names(self) -> set[str]:
        return set(names_in(self.mount)) - {_LINKS}

    def remove(self, name: str) -> None:
        """Remove an empty folder from the copy."""
        os.rmdir(name, dir_fd=self.mount)

    def write_numbers(self) -> None:
        """Write the list of inode numbers as the file `numbers`, for the builder of pods."""
        descriptor = os.open("numbers", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.mount)
        try:
            os.write(descriptor, self.numbers.tobytes())
        finally:
            os.close(descriptor)

    def keep(self, sealed: bool = False) -> int:
        """Return the descriptor, which belongs to the caller from now on. `sealed`: makes it read-only for good."""
        os.rmdir(_LINKS, dir_fd=self.mount)
        if sealed:
            _files.seal(self.mount)
        self._kept = True
        return self.mount


@contextlib.contextmanager
def folder(parent: int, name: str) -> Iterator[int]:
    """Open a folder below another without following a link, and close it again."""
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names_in(parent: int) -> list[str]:
    """The names in a folder. Opened again, because listing moves the offset of the descriptor."""
    with folder(parent, ".") as again:
        return os.listdir(again)


def used(file_system: int) -> tuple[int, int]:
    """Bytes and inodes in use in a file system."""
    found = os.fstatvfs(file_system)
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree
