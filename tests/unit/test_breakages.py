"""The list of breakages that `make mutants` tries fits the source: who changes a line that it breaks is told here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.breakage import Breakage
from tests.mutants.breakages import BREAKAGES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_breakage_fits_the_source_and_names_tests_that_are_there(breakage: Breakage) -> None:
    assert breakage.applied_to(ROOT / "src") != (ROOT / "src" / breakage.file).read_text("utf-8")
    for test in breakage.tests:
        path, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / "tests" / path).read_text("utf-8")


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len({breakage.name for breakage in BREAKAGES}) == len(BREAKAGES) >= 40
