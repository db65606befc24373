"""Which tools a sandbox has, and when its guest is told of them, with scripted bodies."""

from __future__ import annotations

import pytest

from ramet.errors import InvalidArgument, ProtocolError
from ramet.protocol import calls, guest
from ramet.protocol.tools.specs import encode_tools
from tests.unit.scripted import ScriptedDeath
from tests.unit.scripted_engine import Call, Engine
from tests.unit.scripted_tools import Scene, told, tool
from tests.waiting import until


async def test_the_guest_is_told_before_the_next_cell_each_time_they_are_given(scene: Scene) -> None:
    scene.client.run(scene.sandbox.id, tools=True)
    assert await told(scene.body) == ("ramet-tools", ["look", "other"])
    assert (await scene.body.next_frame()).kind == guest.RUN
    scene.body.done(2)
    await scene.client.answers()
    scene.client.run(scene.sandbox.id)
    assert (await scene.body.next_frame()).kind == guest.RUN
    scene.body.done(3)
    await scene.client.answers()
    await scene.client.give(scene.sandbox, tool(), tool("other"))  # the same, so that their names lead to them again
    scene.client.run(scene.sandbox.id)
    again = await scene.body.next_frame()
    assert (again.kind, again.header) == (guest.TOOLS, {"socket": "ramet-tools", "anew": True})
    assert (await scene.body.next_frame()).kind == guest.RUN
    scene.body.done(4)
    await scene.client.answers()
    scene.client.run(scene.sandbox.id)
    assert (await scene.body.next_frame()).kind == guest.RUN
    scene.body.done(5)
    await scene.client.answers()
    await scene.client.give(scene.sandbox)
    scene.client.run(scene.sandbox.id)
    assert await told(scene.body) == ("ramet-tools", [])


async def test_a_fresh_repl_is_told_again(scene: Scene) -> None:
    await scene.begin()
    code, _ = await scene.called()
    scene.body.die(ScriptedDeath(None, 9))
    await scene.client.answers()
    scene.client.run(scene.sandbox.id, tools=True)
    await until(lambda: scene.body.revivals == 1)
    assert await told(scene.body) == ("ramet-tools", ["look", "other"])
    assert (await scene.body.next_frame()).kind == guest.RUN
    assert scene.body.listens == ["ramet-tools"]  # in the same pod, the same socket


async def test_what_is_given_during_a_cell_is_for_the_next(scene: Scene) -> None:
    cell = await scene.begin()
    code = scene.code()
    await scene.client.other().give(scene.sandbox, tool("new"))
    await code.call("new")
    assert (await code.failure())[0] == "unknown"
    await code.call("look")
    assert (await scene.client.called()).header["tool"] == "look"
    scene.body.done(cell)
    await scene.client.answers()
    await code.failure()
    await scene.begin()
    await code.call("look")
    assert (await code.failure())[0] == "unknown"
    await code.call("new")
    assert (await scene.client.called()).header["tool"] == "new"


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"{}", "an array"),
        (b"[1]", "an object"),
        (b"nonsense", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (encode_tools([tool("a b")]), "must be 1 to 64 letters, digits, '_' and '-', got 'a b'"),
        (encode_tools([tool("a-b"), tool("a_b")]), "would be the same function"),
        (encode_tools([tool(f"t{n}") for n in range(1001)]), "tools must have at most 1000 entries, got 1001"),
        (b" " * (1024 * 1024 + 1), "1048577 bytes"),
        (encode_tools([tool(timeout_seconds=-1)]), "timeout"),
        (encode_tools([tool(calls_per_cell=-1)]), "calls_per_cell"),
    ],
)
async def test_tools_that_cannot_be_given_are_refused(scene: Scene, blob: bytes, message: str) -> None:
    other = scene.client.other()
    with pytest.raises((ProtocolError, InvalidArgument), match=message):
        await other.post_much(calls.SET_TOOLS, blob, sandbox=scene.sandbox.id)
    await scene.begin()
    await scene.called()  # those it has are still there


async def test_a_sandbox_without_tools_listens_to_nobody(engine: Engine) -> None:
    sandbox, body = await engine.used()
    call = Call(sandbox)
    assert (await body.next_frame()).kind == guest.RUN
    body.done(2)
    assert (await call.outcome()).tool_calls == b""
    assert body.listens == []
