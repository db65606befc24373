"""An engine with a scripted machine, which has closed everything in the end, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.settings import Settings
from tests.unit.scripted import ScriptedBody
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import QUICK, SPEC, Engine
from tests.unit.scripted_tools import Scene, ToolClient, tool


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    await engine.registry.close()
    assert engine.machine.left_open == []
    assert all(frozen.closed for frozen in engine.machine.snapshots)


@pytest.fixture
async def body(tmp_path: Path) -> AsyncIterator[ScriptedBody]:
    body = ScriptedBody(tmp_path)
    yield body
    await body.close()


@pytest.fixture
def settings() -> Settings:
    """Those of the sandbox; a file of tests may have others."""
    return QUICK


@pytest.fixture
async def sandbox(body: ScriptedBody, settings: Settings) -> AsyncIterator[Sandbox]:
    """One by itself, without an engine."""
    sandbox = Sandbox("sbx_test", SPEC, body, settings)
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def connect(engine: Engine) -> AsyncIterator[Callable[[], Client]]:
    """Makes clients, who all leave in the end."""
    clients: list[Client] = []

    def made() -> Client:
        clients.append(Client(engine))
        return clients[-1]

    yield made
    for client in clients:
        await client.left()  # while the engine is still there


@pytest.fixture
async def tool_client(engine: Engine) -> AsyncIterator[ToolClient]:
    """A client that answers tool calls."""
    client = ToolClient(engine)
    yield client
    await client.left()


@pytest.fixture
async def scene(engine: Engine, tool_client: ToolClient) -> AsyncIterator[Scene]:
    """A sandbox with two tools, look and other."""
    scene = Scene(engine, tool_client)
    await scene.set(tool(), tool("other"))
    yield scene
    scene.close()
