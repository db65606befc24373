"""The front page: its table is the one that `make bench BENCH=--readme` prints, and it stays short."""

from __future__ import annotations

import re
from pathlib import Path

from bench import readme
from tests.docs.bench_rows import rows_of

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
_EXAMPLE_LINES = 12
_LINKS = 5


def without_figures(table: str) -> list[tuple[str, str]]:
    """What each row measures, and what it compares with."""
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    return [(row[0], row[2]) for row in cells if len(row) > 1]


def test_the_table_has_the_rows_that_the_bench_prints_for_it() -> None:
    printed = readme.as_markdown([row for scenario in readme.SCENARIOS for row in rows_of(scenario)])
    assert len(without_figures(printed)) > 2
    assert without_figures(README) == without_figures(printed)


def test_the_example_is_short_and_forks() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert len(code.splitlines()) <= _EXAMPLE_LINES
    assert ".fork(" in "\n".join(code.splitlines()[-3:])


def test_five_documents_are_recommended() -> None:
    assert len(re.findall(r"^\d\. \[", README, re.MULTILINE)) == _LINKS
