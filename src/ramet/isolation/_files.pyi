"""Copies of a sandbox's files. Failures are OSErrors whose text names the step; the interpreter runs on meanwhile."""

Copied = tuple[int, int, int, bytes]  # bytes of content, entries, folders, inode numbers (unsigned, 64 bits each)

def make_tmpfs(size_bytes: int, inodes: int, /) -> int:
    """A tmpfs that is mounted nowhere, as a descriptor."""

def seal(mount: int, /) -> None:
    """Nobody can write through this mount any more."""

def copy_tree(from_folder: int, to_folder: int, links: int, fill: bool, numbers: bool, /) -> Copied:
    """Contents and attributes of one folder into another; `native/copytree.h` says what `links` and `fill` are."""

def copy_numbered(from_root: int, to_root: int, names: tuple[str, ...], numbers: bytes, most_skipped: int, /) -> Copied:
    """Folders below one root into those below another, a tmpfs of its own, with the inode numbers that are given."""

def copy_file(from_folder: int, to_folder: int, name: str | bytes, /) -> int:
    """One file from one folder to another; how many bytes."""

def copy_top(from_folder: int, to_folder: int, /) -> None:
    """Attributes of a folder, except those by which overlays join and hide layers."""

def compare_files(
    one_folder: int, other_folder: int, name: str, most_bytes: int, until: float, stop: bytearray, /
) -> tuple[int, int]:
    """Whether both folders have a regular file of that name, with the same mode and content; how many bytes were read.

    1, 0, or -1 for one that was not read to its end: more bytes than allowed, later than ``until`` (monotonic), or
    somebody set ``stop``.
    """
