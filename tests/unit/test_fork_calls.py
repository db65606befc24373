"""Forks as a client asks for them, over a real connection to an engine with a scripted machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramet.errors import ForkFailed, InvalidArgument, RametError, SandboxClosed
from ramet.protocol import calls
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import Engine
from tests.waiting import settle, until


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    await engine.registry.close()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[Client]:
    client = Client(engine)
    yield client
    await client.left()


async def test_a_client_that_vanishes_in_a_fork_leaves_no_children_behind(engine: Engine) -> None:
    parent, body = await engine.used()
    gate = engine.machine.gate("thaw")
    client = Client(engine)
    client.send(calls.FORK, sandbox=parent.id, count=4, reseed=False)
    await until(lambda: bool(engine.machine.kept_pids))
    await client.left()
    gate.set()
    await until(lambda: all(body.closed for body in engine.machine.bodies[1:]) and len(engine.machine.bodies) == 5)
    assert not body.closed
    assert engine.registry.all_of(None) == [parent]


async def test_children_in_an_answer_that_was_never_read_are_closed(engine: Engine) -> None:
    parent, _ = await engine.used()
    client = Client(engine)
    client.send(calls.FORK, sandbox=parent.id, count=2, reseed=False)
    await until(lambda: len(engine.machine.bodies) == 3)
    await until(client.readable)
    client.leave()
    await until(lambda: all(body.closed for body in engine.machine.bodies[1:]))
    assert not engine.machine.bodies[0].closed
    assert engine.registry.all_of(None) == [parent]


async def test_children_in_an_answer_that_was_read_live_on(engine: Engine) -> None:
    parent, _ = await engine.used()
    client = Client(engine)
    await client.ask(calls.FORK, sandbox=parent.id, count=2, reseed=False)
    await client.left()
    await settle()
    assert not any(body.closed for body in engine.machine.bodies)


async def test_a_cell_that_comes_after_a_fork_runs_after_it(engine: Engine, client: Client) -> None:
    parent, body = await engine.used()
    gate = engine.machine.gate("freeze")
    other = Client(engine)
    client.send(calls.FORK, sandbox=parent.id, count=1, reseed=False)
    other.send(calls.RUN, sandbox=parent.id, language="python", timeout=None, stream=False)
    await until(lambda: "freeze" in engine.machine.reached and parent.queue.waiting == 1)
    await settle()
    assert body.silent()
    gate.set()
    assert len(list((await client.answer()).header["children"])) == 1  # type: ignore[call-overload]
    await body.next_frame()
    body.done(2)
    assert (await other.answer()).kind == calls.RESULT
    other.leave()


@pytest.mark.parametrize(
    ("kind", "header", "error"),
    [
        (calls.FORK, {"count": 0, "reseed": False}, InvalidArgument),
        (calls.FORK, {"count": 257, "reseed": False}, InvalidArgument),
        (calls.FORK, {"sandbox": "sbx_none", "count": 1, "reseed": False}, SandboxClosed),
        (calls.RESTORE, {"snapshot": "snp_none"}, SandboxClosed),
        (calls.MERGE, {"winner": "sbx_none"}, SandboxClosed),
        (calls.MERGE, {"winner": None}, InvalidArgument),
        (calls.DIFF, {"other": "sbx_none", "paths": None}, SandboxClosed),
        (calls.DIFF, {"other": None, "paths": [""]}, InvalidArgument),
        (calls.SAVE, {"snapshot": "snp_none", "name": "a"}, SandboxClosed),
        (calls.THAW, {"snapshot": "snp_none", "environment": {}}, SandboxClosed),
        (calls.THAW, {"name": "none", "environment": {}}, InvalidArgument),
    ],
)
async def test_what_cannot_be_done_is_refused_before_anything_happens(
    engine: Engine, client: Client, kind: int, header: dict[str, object], error: type[RametError]
) -> None:
    parent, body = await engine.used()
    # None stands for the sandbox itself.
    known = {
        name: parent.id if value is None and name in ("winner", "other") else value for name, value in header.items()
    }
    with pytest.raises(error):
        await client.ask(kind, **{"sandbox": parent.id, **known})
    assert len(engine.machine.bodies) == 1
    assert body.silent()
    # The connection is good for more.
    assert (await client.ask(calls.INFO, sandbox=parent.id)).header["state"] == "idle"


async def test_a_fork_that_fails_is_told_over_the_wire(engine: Engine, client: Client) -> None:
    parent, _ = await engine.used()
    engine.machine.failing = "freeze"
    with pytest.raises(ForkFailed, match="scripted to fail"):
        await client.ask(calls.FORK, sandbox=parent.id, count=1, reseed=False)


async def test_snapshots_over_the_wire(engine: Engine, client: Client) -> None:
    parent, _ = await engine.used()
    snapshot = (await client.ask(calls.SNAPSHOT, sandbox=parent.id)).header["id"]
    await client.ask(calls.SAVE, snapshot=snapshot, name="mine")
    await client.ask(calls.RESTORE, sandbox=parent.id, snapshot=snapshot)
    await client.ask(calls.DROP, snapshot=snapshot)
    made = (await client.ask(calls.THAW, name="mine", environment={})).header["id"]
    await client.ask(calls.MERGE, sandbox=parent.id, winner=made)
    await client.ask(calls.CLOSE, sandbox=made)
    with pytest.raises(SandboxClosed, match="was merged"):
        await client.ask(calls.INFO, sandbox=made)
