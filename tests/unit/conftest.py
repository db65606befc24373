"""An engine with a scripted machine, which has closed everything in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.scripted_engine import Engine


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    await engine.registry.close()
    assert all(body.closed for body in engine.machine.bodies)
    assert all(frozen.closed for frozen in engine.machine.snapshots)
