"""Programs that are ended after the test, whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lifetime.programs import Program


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    started: list[Program] = []

    def start(source: str) -> Program:
        program = Program(source, tmp_path / f"program-{len(started)}")
        started.append(program)
        return program

    yield start
    for program in started:
        program.close()
