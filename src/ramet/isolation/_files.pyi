"""Copies of a sandbox's files, in C. Each function raises OSError with the step in its text, and releases the GIL."""

Copied = tuple[int, int, int, bytes]  # bytes of content, entries, folders, inode numbers (unsigned, 64 bits each)

def make_tmpfs(size_bytes: int, inodes: int, /) -> int:
    """Make a tmpfs that is mounted nowhere, as a descriptor."""

def seal(mount: int, /) -> None:
    """Make a mount read-only for good."""

def copy_tree(from_folder: int, to_folder: int, links: int, fill: bool, numbers: bool, /) -> Copied:
    """Copy contents and attributes of one folder into another. `native/copytree.h` explains `links` and `fill`."""

def copy_numbered(from_root: int, to_root: int, names: tuple[str, ...], numbers: bytes, most_skipped: int, /) -> Copied:
    """Copy folders below one root into those below another, a tmpfs of its own, with the given inode numbers."""

def copy_file(from_folder: int, to_folder: int, name: str | bytes, /) -> int:
    """Copy one file from one folder to another. Returns its size in bytes."""

def copy_top(from_folder: int, to_folder: int, /) -> None:
    """Copy the attributes of a folder, except those with which overlays merge and hide layers."""

def compare_files(
    one_folder: int, other_folder: int, name: str, most_bytes: int, until: float, stop: bytearray, /
) -> tuple[int, int]:
    """Whether both folders have the same regular file of that name (mode and content), and the bytes read.

    1, 0, or -1 for a file that was not read to its end: more bytes than allowed, later than ``until`` (monotonic
    clock), or ``stop`` was set.
    """
