"""Tools when a sandbox is copied or gets another body, and cells that wait for the tool socket. Scripted bodies."""

from __future__ import annotations

import asyncio

import pytest

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.making import thaw
from ramet.errors import ExecutionCancelled, LimitReached, SandboxClosed
from ramet.protocol import calls, guest
from ramet.protocol.tools.specs import GivenTools
from ramet.protocol.values.specs import ThawSpec
from tests.unit.scripted import ScriptedBody
from tests.unit.scripted_engine import Call, Engine, finish, take, work
from tests.unit.scripted_tools import Code, Scene, ToolClient, begun, told, tool
from tests.waiting import until


async def forked(scene: Scene) -> tuple[Sandbox, ScriptedBody]:
    child = (await scene.engine.fork(scene.sandbox)).sandboxes[0]
    return child, scene.engine.machine.bodies[-1]


async def assert_echoes(client: ToolClient, sandbox: Sandbox, body: ScriptedBody, name: str = "look") -> None:
    """A cell in which a tool is called, up to its end."""
    cell = await client.begin(sandbox, body)
    code = Code(body)
    await code.call(name)
    call = (await client.called()).header["call"]
    assert await client.value(sandbox, call, b"echo")
    assert await code.value() == b"echo"
    code.close()
    body.done(cell)
    assert [row[2] for row in await client.result()] == ["ok"]


async def test_the_child_of_a_fork_has_its_parents_tools_over_a_socket_of_its_own(scene: Scene) -> None:
    child, body = await forked(scene)
    assert body.listens == []  # not before it needs it: a fork does not wait for it
    other = scene.client.other()
    other.run(child.id, tools=True)
    assert await told(body) == ("ramet-tools", ["look", "other"])
    body.done(await begun(body))
    await other.answers()
    assert body.listens == ["ramet-tools"]
    await asyncio.gather(assert_echoes(other, child, body), assert_echoes(scene.client, scene.sandbox, scene.body))


async def test_what_is_given_to_a_parent_later_is_not_its_childs(scene: Scene) -> None:
    child, body = await forked(scene)
    await scene.client.give(scene.sandbox, tool("new"))
    await assert_echoes(scene.client, scene.sandbox, scene.body, "new")
    await assert_echoes(scene.client, child, body, "look")


async def test_tools_that_were_taken_away_are_taken_from_copies_too(scene: Scene) -> None:
    await scene.client.give(scene.sandbox)
    child, body = await forked(scene)
    call = Call(child)
    assert await told(body) == ("", [])
    await finish(call, body)
    assert body.listens == []


async def test_a_thawed_snapshot_has_the_tools_that_its_state_had(scene: Scene, engine: Engine) -> None:
    snapshot = await take(engine, scene.sandbox)
    await scene.client.give(scene.sandbox, tool("new"))
    thawed = await work(thaw.thaw(engine.registry, ThawSpec(snapshot.id, None), engine.caller))
    await assert_echoes(scene.client, thawed, engine.machine.bodies[-1], "look")


async def test_a_restored_sandbox_keeps_its_own_tools(scene: Scene, engine: Engine) -> None:
    snapshot = await take(engine, scene.sandbox)
    await scene.client.give(scene.sandbox, tool("new"))
    before = scene.code()
    await work(thaw.restore(engine.registry, scene.sandbox, snapshot, engine.caller))
    assert await before.ended()
    await assert_echoes(scene.client, scene.sandbox, engine.machine.bodies[-1], "new")


async def test_a_merged_sandbox_keeps_its_own_tools(scene: Scene, engine: Engine) -> None:
    child, body = await forked(scene)
    await scene.client.give(child, tool("of_the_child"))
    await assert_echoes(scene.client, child, body, "of_the_child")
    before, of_child = scene.code(), Code(body)
    await engine.merge(scene.sandbox, child)
    assert await before.ended()
    assert await of_child.ended()
    await assert_echoes(scene.client, scene.sandbox, body, "look")
    of_child.close()


async def test_a_sandbox_that_never_had_tools_has_none_after_a_merge(scene: Scene, engine: Engine) -> None:
    bare, _ = await engine.used()
    await engine.merge(bare, scene.sandbox)
    call = Call(bare)
    assert await told(scene.body) == ("", [])
    await finish(call, scene.body)


async def test_a_name_that_is_taken_in_the_sandbox_is_left_alone(scene: Scene) -> None:
    child, body = await forked(scene)
    body.taken_names = {"ramet-tools"}
    scene.client.run(child.id, tools=True)
    name, _ = await told(body)
    assert str(name).startswith("ramet-tools-")
    assert body.listens == ["ramet-tools", name]
    await begun(body)
    code = Code(body, str(name))
    await code.call()
    await scene.client.called()
    code.close()


# Waiting for the socket


async def test_cells_wait_for_the_socket_in_their_order(scene: Scene) -> None:
    child, body = await forked(scene)
    body.listen_gate = asyncio.Event()
    waiting = [Call(child, code) for code in (b"1", b"2")]
    await until(lambda: body.listens == ["ramet-tools"])
    assert body.silent()
    assert child.state == "running"
    body.listen_gate.set()
    await told(body)
    for call, code in zip(waiting, (b"1", b"2"), strict=True):
        frame = await body.next_frame()
        assert (frame.kind, frame.blob) == (guest.RUN, code)
        body.done(int(str(frame.header["id"])))
        await call.outcome()


async def test_a_fork_does_not_wait_for_the_socket(scene: Scene, engine: Engine) -> None:
    child, body = await forked(scene)
    body.listen_gate = asyncio.Event()
    assert len((await engine.fork(child, 2)).sandboxes) == 2
    assert body.listens == []


async def test_a_cell_that_waits_for_the_socket_can_be_cancelled(scene: Scene) -> None:
    child, body = await forked(scene)
    body.listen_gate = asyncio.Event()
    first, second = Call(child, b"1"), Call(child, b"2")
    await until(lambda: body.listens != [])
    assert child.queue.cancel(first.cell, "a test")
    body.listen_gate.set()
    await told(body)
    assert (await body.next_frame()).blob == b"2"
    assert not second.done
    with pytest.raises(ExecutionCancelled):
        await first.outcome()


async def test_a_cell_fails_where_the_socket_cannot_be_made_and_the_next_tries_again(scene: Scene) -> None:
    child, body = await forked(scene)
    body.listen_error = LimitReached("no room")
    with pytest.raises(LimitReached):
        await Call(child).outcome()
    body.listen_error = None
    await assert_echoes(scene.client, child, body)


async def test_a_sandbox_that_closes_meanwhile_leaves_no_socket_behind(scene: Scene) -> None:
    child, body = await forked(scene)
    body.listen_gate = asyncio.Event()
    call = Call(child)
    await until(lambda: body.listens != [])
    closing = asyncio.ensure_future(child.close())
    await until(lambda: child.state == "closed")
    body.listen_gate.set()
    await closing
    with pytest.raises(ExecutionCancelled):
        await call.outcome()
    with pytest.raises(ConnectionRefusedError):
        Code(body)


async def test_tools_given_while_the_sandbox_closes_leave_no_socket_behind(scene: Scene, engine: Engine) -> None:
    sandbox, body = await engine.used()
    body.listen_gate = asyncio.Event()
    giving = asyncio.ensure_future(sandbox.give_tools(GivenTools([tool()])))
    await until(lambda: body.listens != [])
    await sandbox.close()
    body.listen_gate.set()
    with pytest.raises(SandboxClosed):
        await giving
    with pytest.raises(ConnectionRefusedError):
        Code(body)
    with pytest.raises(SandboxClosed):
        await sandbox.give_tools(GivenTools([tool()]))


async def test_tools_given_while_another_body_takes_the_place_are_those_of_the_new_one(
    scene: Scene, engine: Engine
) -> None:
    sandbox, body = await engine.used()
    snapshot = await take(engine, sandbox)
    body.listen_gate = asyncio.Event()
    giving = asyncio.ensure_future(sandbox.give_tools(GivenTools([tool("late")])))
    await until(lambda: body.listens != [])
    await work(thaw.restore(engine.registry, sandbox, snapshot, engine.caller))
    body.listen_gate.set()
    await giving
    await assert_echoes(scene.client, sandbox, engine.machine.bodies[-1], "late")


async def test_a_client_may_give_tools_again_and_again_at_the_same_time(scene: Scene, engine: Engine) -> None:
    sandbox, body = await engine.used()
    await asyncio.gather(*(sandbox.give_tools(GivenTools([tool(f"t{number}")])) for number in range(10)))
    assert body.listens == ["ramet-tools"]
    await assert_echoes(scene.client, sandbox, body, "t9")


async def test_a_cell_without_tools_of_its_client_is_as_ever(scene: Scene) -> None:
    scene.client.run(scene.sandbox.id)
    cell = await begun(scene.body)
    scene.body.done(cell)
    frame = (await scene.client.answers())[-1]
    assert frame.kind == calls.RESULT
    assert "tool_calls" not in frame.header
