"""One thing that is broken on purpose, and the tests that must see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class Stale(Exception):
    """The source is not what the list of breakages takes it for."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """`old` occurs exactly once in `file`; with `new` in its place at least one of `tests` fails."""

    name: str
    file: str  # below src/
    old: str
    new: str
    tests: tuple[str, ...]  # below tests/, each "path::function": the parameters of a test may change

    @property
    def native(self) -> bool:
        """It has to be compiled."""
        return self.file.endswith((".c", ".h"))

    def applied_to(self, folder: Path) -> str:
        """The text of the broken file, made from the whole one below `folder`. Raises Stale."""
        path = folder / self.file
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            raise Stale(f"{self.name}: there is no src/{self.file} any more") from None
        found = text.count(self.old)
        if found != 1:
            raise Stale(f"{self.name}: src/{self.file} has this {found} times instead of once: {self.old!r}")
        return text.replace(self.old, self.new)
