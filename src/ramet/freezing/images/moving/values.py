"""The words in which a value of a foreign image is refused, and what several checks have in common."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.freezing.images.manifest import ImageRefused

LARGEST_PID = 1 << 22
_PATH_BYTES = 4096
_RANGES_AT_MOST = 2048


def demand(truth: bool, what: str) -> None:
    """Raise ImageRefused unless it is true."""
    if not truth:
        raise ImageRefused(f"the image asks for what no sandbox has: {what}")


def is_pid(pid: int) -> bool:
    return 1 < pid < LARGEST_PID


def is_path(path: bytes) -> bool:
    return path.startswith(b"/") and len(path) < _PATH_BYTES and b"\0" not in path


def check_ranges(ranges: Sequence[tuple[int, int]] | None) -> None:
    before = -1
    demand(len(ranges or ()) <= _RANGES_AT_MOST, "too many parts of a file")
    for begin, end in ranges or ():
        demand(before < begin < end < 1 << 62, "parts of a file out of order")
        before = end
