"""Every test says what must hold: one without an assertion passes whatever the product does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.tiers import KINDS

TESTS = Path(__file__).resolve().parent.parent
FILES = sorted(TESTS.rglob("test_*.py"))
_MOST_ON_EVERY_FACE = 75

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class WrittenTest:
    """What is looked at of one; trees of all files would fill hundreds of megabytes."""

    name: str
    asserts: bool
    marks: frozenset[str]


@cache
def written_in(file: Path) -> tuple[WrittenTest, ...]:
    found = collected_in(ast.parse(file.read_text(encoding="utf-8")))
    return tuple(WrittenTest(function.name, asserts(function), marks_of(function)) for function in found)


def collected_in(tree: ast.Module) -> Iterator[Function]:
    """Those that pytest collects: at the top of a module, or in a class there."""
    for node in tree.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, Function) and function.name.startswith("test_"):
                yield function


def asserts(function: Function) -> bool:
    """Whether it asserts, expects an error or a warning, or calls a helper that is named for asserting."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = called(node)
            if name in ("pytest.raises", "pytest.warns", "pytest.fail"):
                return True
            if name.rpartition(".")[2].lstrip("_").startswith("assert_"):
                return True
    return False


def called(call: ast.Call) -> str:
    """The name of what is called, with that of what it belongs to."""
    if isinstance(call.func, ast.Attribute):
        owner = call.func.value
        return f"{owner.id if isinstance(owner, ast.Name) else '?'}.{call.func.attr}"
    return call.func.id if isinstance(call.func, ast.Name) else ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_every_test_asserts_something(file: Path) -> None:
    assert [test.name for test in written_in(file) if not test.asserts] == []


def marks_of(function: Function) -> frozenset[str]:
    """The names of its own markers, without their arguments."""
    found = (node.func if isinstance(node, ast.Call) else node for node in function.decorator_list)
    return frozenset(name.rpartition(".")[2] for name in map(ast.unparse, found) if name.startswith("pytest.mark."))


def test_few_tests_run_on_every_face_and_none_of_them_is_deep() -> None:
    """Each of them costs the fast tier three to five runs."""
    chosen = [test for file in FILES for test in written_in(file) if "every_face" in test.marks]
    assert 0 < len(chosen) <= _MOST_ON_EVERY_FACE
    assert [test.name for test in chosen if "deep" in test.marks] == []


def test_the_kinds_of_deep_tests_are_explained() -> None:
    text = (TESTS.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(KINDS)


def test_helpers_of_several_tests_do_not_lie_in_a_test_file() -> None:
    """What another module imports has a module of its own: whoever changes a test sees who depends on it.

    Tests themselves may be imported: a module can run them again under other circumstances.
    """
    importing = [file for file in TESTS.rglob("*.py") for name in imported(file) if is_test_file(name)]
    assert importing == []


def imported(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    if not re.search(r"^ *from tests\.[\w.]*test_", text, re.MULTILINE):  # quicker than to parse all files
        return []
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    helpers = [node for node in nodes if not all(name.name.startswith("test_") for name in node.names)]
    return [node.module for node in helpers if node.module is not None]


def is_test_file(module: str) -> bool:
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert 1", True),
        ("with pytest.raises(ValueError): f()", True),
        ("self.assert_unharmed()", True),
        ("_assert_serves(worker)", True),
        ("run(1)", False),
        ("text = 'assert 1'", False),
        ("server.fail()", False),
    ],
)
def test_an_assertion_is_told_from_a_call(body: str, expected: bool) -> None:
    (function,) = collected_in(ast.parse(f"def test_one():\n    {body}"))
    assert asserts(function) is expected
