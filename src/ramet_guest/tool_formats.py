"""The formats in which this process can read what tools return."""

from __future__ import annotations

from importlib.util import find_spec
from time import monotonic

# And the library that each takes.
_LIBRARIES = (("arrow", "pyarrow"), ("npy", "numpy"))
_SECONDS_BETWEEN_LOOKS = 1.0


class Formats:
    """Known without importing anything. What was not found is looked for again: it may have been installed."""

    def __init__(self) -> None:
        self.encoded = b"[]"
        self._found: set[str] = set()
        self._next_look = 0.0

    def look(self) -> None:
        """At most once a second, until everything is there."""
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
    except Exception:  # a finder of user code, or something odd under this name
        return False


formats = Formats()
