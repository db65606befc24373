"""Connections to the engine of this process, and what was made over them: both end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ramet.protocol import calls
from tests.engine.frames_client import Line

Connect = Callable[[], Line]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes connections."""
    lines: list[Line] = []

    def made() -> Line:
        lines.append(Line())
        return lines[-1]

    yield made
    for line in lines:
        line.close()
    # No test leaves a sandbox, a snapshot or a space behind.
    last = Line()
    last.send(calls.WATCH)
    everything = last.frame().header
    last.close()
    cleaner = Line()
    fields = (("sandboxes", calls.CLOSE, "sandbox"), ("snapshots", calls.DROP, "snapshot"))
    for name, kind, field in fields:
        for row in everything[name]:  # type: ignore[attr-defined]
            cleaner.ask(kind, **{field: row["id"]})
    for row in everything["spaces"]:  # type: ignore[attr-defined]
        cleaner.ask(calls.DISCARD, space=row["id"])
    for row in everything["sandboxes"]:  # type: ignore[attr-defined]
        cleaner.ask(calls.DISCARD, space=row["id"])
    cleaner.close()


@pytest.fixture
def line(connect: Connect) -> Line:
    return connect()
