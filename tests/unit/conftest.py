"""An engine with a scripted machine, which has closed everything in the end, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import Engine
from tests.unit.scripted_tools import Scene, ToolClient, tool


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    await engine.registry.close()
    assert all(body.closed for body in engine.machine.bodies)
    assert all(frozen.closed for frozen in engine.machine.snapshots)


@pytest.fixture
async def connect(engine: Engine) -> AsyncIterator[Callable[[], Client]]:
    """Makes clients, who all leave in the end."""
    clients: list[Client] = []

    def made() -> Client:
        clients.append(Client(engine))
        return clients[-1]

    yield made
    for client in clients:
        client.leave()
    await asyncio.sleep(0)  # the engine sees them leave while it is still there


@pytest.fixture
async def tool_client(engine: Engine) -> AsyncIterator[ToolClient]:
    """A client that answers tool calls."""
    client = ToolClient(engine)
    yield client
    client.leave()
    await asyncio.sleep(0)


@pytest.fixture
async def scene(engine: Engine, tool_client: ToolClient) -> AsyncIterator[Scene]:
    """A sandbox with two tools, look and other."""
    scene = Scene(engine, tool_client)
    await scene.set(tool(), tool("other"))
    yield scene
    scene.close()
