"""docs/promises.md agrees, both ways, with what holds its promises: marked tests, and bench rows with a target."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from bench.scenarios import SCENARIOS
from bench.table import Row, as_figure
from tests.docs.bench_rows import rows_of

ROOT = Path(__file__).resolve().parents[2]
_LINE = re.compile(r"^\| `([\w-]+)` \| .+ \| (.+) \|$", re.MULTILINE)
_NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")
_NUMBER_OF_CALLS = re.compile(r" of \d+ calls$")


def promises() -> list[tuple[str, str]]:
    """Each promise: its id and the column that names what holds it."""
    return _LINE.findall((ROOT / "docs" / "promises.md").read_text(encoding="utf-8"))


def marked_tests() -> dict[str, list[str]]:
    """The tests that carry `@pytest.mark.promise(id)`, by id."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for promise in ids_of(function):
                    found.setdefault(promise, []).append(f"{file.relative_to(ROOT)}::{function.name}")
    return found


def ids_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    calls = [node for node in function.decorator_list if isinstance(node, ast.Call)]
    return [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "pytest.mark.promise"]


def as_target(row: Row) -> str:
    """The row and its target in the words of docs/promises.md."""
    assert row.target is not None
    name = _NUMBER_OF_CALLS.sub("", row.scenario)
    if row.against:
        return f"`{name}` at most {row.target:g} × `{row.against}`"
    return f"`{name}` at most {as_figure(row.target, row.unit)}"


def test_every_promise_has_an_id_of_its_own() -> None:
    repeated = [promise for promise, count in Counter(promise for promise, _ in promises()).items() if count > 1]
    assert repeated == []


def test_tests_that_the_document_names_are_marked_and_marked_tests_are_named() -> None:
    named = {promise: sorted(_NAMED_TEST.findall(held_by)) for promise, held_by in promises()}
    marked = {promise: sorted(names) for promise, names in marked_tests().items()}
    assert {promise: names for promise, names in named.items() if names} == marked


def test_rows_that_the_document_names_have_these_targets_and_rows_with_a_target_are_named() -> None:
    held_by_the_bench = [held_by for _, held_by in promises() if not _NAMED_TEST.search(held_by)]
    named = [target for held_by in held_by_the_bench for target in held_by.split("<br>")]
    targets = [as_target(row) for scenario in SCENARIOS for row in rows_of(scenario) if row.target is not None]
    assert sorted(named) == sorted(targets)
