"""The formats in which this process can read the values of tools."""

from __future__ import annotations

from importlib.util import find_spec
from time import monotonic

# Each format with the library that it needs.
_LIBRARIES = (("arrow", "pyarrow"), ("npy", "numpy"))
_SECONDS_BETWEEN_LOOKS = 1.0


class Formats:
    """Finds out without importing anything. Looks again for missing libraries, since code may install them."""

    def __init__(self) -> None:
        self.encoded = b"[]"
        self._found: set[str] = set()
        self._next_look = 0.0

    def look(self) -> None:
        """Looks at most once a second, until all are found."""
        if len(self._found) == len(_LIBRARIES):
            return
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        self._found = {name for name, library in _LIBRARIES if can_be_found(library)}
        self.encoded = b"[%s]" % b",".join(b'"%s"' % name.encode() for name in sorted(self._found))


def can_be_found(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except Exception:  # user code may have installed a broken finder, or something odd under this name
        return False


formats = Formats()
