"""Rows of the result, printed as one table and one JSON line."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata


@dataclass(frozen=True)
class Row:
    """One comparison. `target` is the most that the ratio may be, or `ours` itself when `against` is empty."""

    scenario: str
    against: str
    unit: str
    ours: float | None = None
    theirs: float | None = None
    target: float | None = None
    note: str | None = None

    @property
    def ratio(self) -> float | None:
        if self.ours is None or self.theirs is None:
            return None
        return self.ours / self.theirs

    @property
    def verdict(self) -> str:
        if self.note is not None:
            return self.note
        # A ratio when there is somebody to compare with, else the figure itself.
        reached = self.ratio if self.against else self.ours
        if self.target is None or reached is None:
            return ""
        return "pass" if reached <= self.target else "miss"


_HEAD = ("scenario", "ours", "against", "theirs", "ratio", "target", "")


def as_table(rows: Sequence[Row]) -> str:
    lines = [_HEAD]
    for row in rows:
        lines.append(
            (
                row.scenario,
                as_figure(row.ours, row.unit),
                row.against,
                as_figure(row.theirs, row.unit),
                _plain(row.ratio),
                _at_most(row),
                row.verdict,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    drawn.insert(1, "-" * max(map(len, drawn)))
    return "\n".join(drawn)


def as_json_line(rows: Sequence[Row], quick: bool) -> str:
    return json.dumps(
        {
            "ramet": metadata.version("ramet"),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "cores": os.cpu_count(),
            "quick": quick,
            "rows": [asdict(row) | {"ratio": row.ratio, "verdict": row.verdict} for row in rows],
        }
    )


def _at_most(row: Row) -> str:
    if row.target is None:
        return ""
    # With nobody to compare with, the target is a figure of the row's own unit.
    return f"<= {_plain(row.target) if row.against else as_figure(row.target, row.unit)}"


def as_figure(value: float | None, unit: str) -> str:
    """The value in the unit that reads best; nothing where nothing was measured."""
    if value is None:
        return ""
    if unit == "count":
        return f"{value:g}"
    if unit == "bytes":
        return f"{value / 1e6:.2f} MB"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
