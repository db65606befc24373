"""Copies an installed tree out of the sandbox that installed it. Trusts nothing that it finds there.

Code of that sandbox may still run and change the tree during the copy. So every open is relative to a folder that is
already open, follows no link, and is checked again on the open descriptor.
"""

from __future__ import annotations

import os
import stat

from ramet.isolation.files.walks import Stop
from ramet.protocol.lazy_dataclasses import dataclass

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a file may have been replaced by a FIFO since it was listed, and opening one blocks until it has a writer.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH_AT_MOST = 64
_ENTRIES_AT_MOST = 200_000
_PIECE_BYTES = 1 << 26
_BLOCK_BYTES = 4096


class TooMuch(Exception):
    """The tree is larger than the store allows, contains something that no package has, or changes during the copy."""


@dataclass(slots=True)
class Size:
    """The size of a tree, or the rest of a budget."""

    size_bytes: int = 0
    entries: int = 0

    def add(self, size_bytes: int) -> None:
        # Whole blocks, and at least one: empty files take memory, too.
        self.size_bytes += max(1, -(-size_bytes // _BLOCK_BYTES)) * _BLOCK_BYTES
        self.entries += 1


def measure(
    folder: int, at_most_bytes: int, stop: Stop | None = None, depth: int = 0, size: Size | None = None
) -> Size:
    """Measure a tree of plain files. Blocks: run it in a thread. Raises TooMuch, or WalkCancelled if it is stopped."""
    size = size or Size()
    stop = stop or Stop()
    _check_depth(depth)
    with os.scandir(folder) as entries:
        for entry in entries:
            stop.check()
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode):
                size.add(0)
                inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                try:
                    measure(inner, at_most_bytes, stop, depth + 1, size)
                finally:
                    os.close(inner)
            elif stat.S_ISREG(about.st_mode):
                size.add(about.st_size)
            else:
                raise TooMuch(f"{entry.name!r} is neither a file nor a folder")
            if size.size_bytes > at_most_bytes or size.entries > _ENTRIES_AT_MOST:
                raise TooMuch(f"more than {at_most_bytes >> 20} MiB or {_ENTRIES_AT_MOST} files")
    return size


def copy_tree(source: int, target: int, left: Size, stop: Stop | None = None, depth: int = 0) -> None:
    """Copy files and folders into an empty folder. Blocks, so run it in a thread. Raises TooMuch or WalkCancelled.

    ``left`` is the measured size: a tree that has grown since then is refused.
    """
    stop = stop or Stop()
    _check_depth(depth)
    with os.scandir(source) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        stop.check()
        left.entries -= 1
        if left.entries < 0:
            raise TooMuch("it has grown")
        if is_folder:
            os.mkdir(name, 0o755, dir_fd=target)
            inner = os.open(name, _FOLDER, dir_fd=source)
            try:
                copy = os.open(name, _FOLDER, dir_fd=target)
                try:
                    copy_tree(inner, copy, left, stop, depth + 1)
                finally:
                    os.close(copy)
            finally:
                os.close(inner)
        else:
            _copy_file(source, target, name, left)


def _copy_file(source: int, target: int, name: str, left: Size) -> None:
    from_file = os.open(name, _TO_READ, dir_fd=source)
    try:
        about = os.fstat(from_file)
        if not stat.S_ISREG(about.st_mode):
            raise TooMuch(f"{name!r} is not a file")
        left.size_bytes -= about.st_size
        if left.size_bytes < 0:
            raise TooMuch("it has grown")
        to_file = os.open(name, _NEW, 0o755 if about.st_mode & 0o100 else 0o644, dir_fd=target)
        try:
            missing = about.st_size
            while missing:
                sent = os.sendfile(to_file, from_file, None, min(missing, _PIECE_BYTES))
                if sent == 0:
                    raise TooMuch("it has shrunk")
                missing -= sent
            # A .pyc file stores the time of its source: with another time Python would compile the module again.
            os.utime(to_file, ns=(about.st_mtime_ns, about.st_mtime_ns))
        finally:
            os.close(to_file)
    finally:
        os.close(from_file)


def _check_depth(depth: int) -> None:
    if depth > _DEPTH_AT_MOST:
        raise TooMuch(f"folders nested more than {_DEPTH_AT_MOST} deep")
