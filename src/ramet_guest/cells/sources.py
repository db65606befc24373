"""Keeps the text of cells where tracebacks and `inspect` look for it."""

from __future__ import annotations

import inspect
import linecache
import re
from collections import deque
from collections.abc import Callable
from typing import Any

# Enough for the tracebacks of any session. Without a limit a loop of large cells would fill the memory.
MAXIMUM_CELLS = 10_000
MAXIMUM_CHARACTERS = 32 << 20

_cache: dict[str, Any] = linecache.cache
_find_file: Callable[[Any], str] = inspect.getfile


class Sources:
    """Numbers cells and keeps the text of the latest ones in `linecache`."""

    def __init__(self) -> None:
        self.count = 0
        # Counts the pieces of code that magics ran inside the present cell.
        self._nested = 0
        # The text of the cell that was compiled last, as Python saw it.
        self.latest = ""
        self.on_dropped: Callable[[str], None] = lambda name: None
        self._kept: deque[tuple[str, int]] = deque()
        self._characters = 0

    def next_name(self, nested: bool = False) -> str:
        """Returns the file name of the next cell.

        Numbers match `In` and `Out`; code that a magic runs gets a sub-number.
        """
        if nested:
            self._nested += 1
            return f"<cell {self.count}.{self._nested}>"
        self.count += 1
        self._nested = 0
        return f"<cell {self.count}>"

    def keep(self, name: str, source: str) -> None:
        """Keeps a cell's text for tracebacks, and drops the oldest beyond the limits."""
        # Every line needs its newline, the last one too: tracebacks would misplace their carets.
        lines = [line + "\n" for line in source.split("\n")]
        size = len(source)
        self.latest = source
        _cache[name] = (size, None, lines, name)
        self._kept.append((name, size))
        self._characters += size
        while self._characters > MAXIMUM_CHARACTERS or len(self._kept) > MAXIMUM_CELLS:
            if len(self._kept) == 1:
                break
            oldest, oldest_size = self._kept.popleft()
            self._characters -= oldest_size
            _cache.pop(oldest, None)
            self.on_dropped(oldest)

    def latest_first(self) -> list[str]:
        return [name for name, _ in reversed(self._kept)]

    def reset(self) -> None:
        """Forgets everything, including the numbering. Used after the warm-up."""
        for name, _ in self._kept:
            _cache.pop(name, None)
        self._kept.clear()
        self._characters = 0
        self.count = self._nested = 0
        self.latest = ""


def teach_inspect(sources: Sources) -> None:
    """Makes `inspect.getsource` find classes defined in cells: `__main__` has no file to look into."""

    def getfile(thing: Any) -> str:
        if isinstance(thing, type) and thing.__module__ == "__main__":
            name = cell_of_class(thing, sources)
            if name is not None:
                return name
        return _find_file(thing)

    inspect.getfile = getfile  # type: ignore[assignment]


def cell_of_class(thing: type, sources: Sources) -> str | None:
    """Finds the cell that defines a class: by the code of its methods, or by its `class` statement."""
    for value in vars(thing).values():
        function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        code = getattr(function, "__code__", None)
        if code is not None and code.co_filename in _cache and code.co_qualname.startswith(thing.__qualname__ + "."):
            return str(code.co_filename)
    statement = re.compile(rf"\s*class\s+{re.escape(thing.__name__)}\b")
    for name in sources.latest_first():
        entry = _cache.get(name)
        if entry is not None and any(statement.match(line) for line in entry[2]):
            return name
    return None
