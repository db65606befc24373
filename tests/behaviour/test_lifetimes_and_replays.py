"""How long a sandbox lives, what it said last, and how another handle finds it."""

from __future__ import annotations

import asyncio
import gc

import pytest

from ramet import AsyncSandbox, InvalidArgument, Sandbox, SandboxClosed
from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.behaviour.waiting import UNTIL_GO, go, read_until, wait_until


def is_over(sandbox: AnySandbox) -> bool:
    try:
        sandbox.info()
    except SandboxClosed:
        return True
    return False


@pytest.mark.every_face
def test_a_sandbox_ends_when_its_time_is_over_and_says_so(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(timeout_seconds=0.5)
    wait_until(lambda: is_over(sandbox), "its time is over")
    with pytest.raises(SandboxClosed) as closed:
        sandbox.run_code("1")
    assert closed.value.details["cause"] == "timeout"
    sandbox.close()


def test_a_sandbox_that_nobody_uses_ends(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(idle_timeout_seconds=0.5)
    wait_until(lambda: is_over(sandbox), "it was idle for long enough")
    with pytest.raises(SandboxClosed) as closed:
        sandbox.run_code("1")
    assert closed.value.details["cause"] == "idle"


def test_a_running_cell_is_use(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox()
    events = sandbox.run_code_stream(UNTIL_GO + "time.sleep(0.4)")
    read_until(events, "begun")
    sandbox.extend(idle_timeout_seconds=0.2)
    go(sandbox)
    assert [event.code for event in events if event.type == "exit"] == [0]


@pytest.mark.every_face
def test_a_lifetime_can_be_extended(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(timeout_seconds=100, idle_timeout_seconds=60)
    before = sandbox.info()
    sandbox.extend(timeout_seconds=1000)
    after = sandbox.info()
    assert before.expires_ms is not None
    assert after.expires_ms is not None
    assert after.expires_ms > before.expires_ms + 800_000
    assert after.created_ms == before.created_ms


@pytest.mark.parametrize(
    ("argument", "arguments"),
    [
        ("timeout_seconds", (None, None)),
        ("timeout_seconds", (0, None)),
        ("timeout_seconds", ("5", None)),
        ("idle_timeout_seconds", (None, -1)),
        ("idle_timeout_seconds", (5, float("nan"))),
    ],
)
def test_a_wrong_lifetime_is_named(any_sandbox: AnySandbox, argument: str, arguments: tuple[float, float]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        any_sandbox.extend(*arguments)
    assert refused.value.argument == argument
    assert "no limit" not in str(refused.value), "None leaves a lifetime as it is"
    assert any_sandbox.run_code("1").value == "1"


@pytest.mark.every_face
def test_a_replay_tells_what_was_printed_last(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import sys; print('eins €'); print('zwei', file=sys.stderr)")
    list(any_sandbox.run_code_stream("print('drei'); raise SystemExit(3)"))
    events = any_sandbox.replay()
    assert "".join(event.data for event in events if event.type == "stdout") == "eins €\ndrei\n"
    assert "".join(event.data for event in events if event.type == "stderr") == "zwei\n"
    assert [event.code for event in events if event.type == "exit"] == [0, 3]
    assert events[-1].type == "exit"
    times = [event.time_seconds for event in events]
    assert times == sorted(times)


def test_a_sandbox_that_printed_nothing_has_no_replay(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.replay() == []


def test_another_handle_finds_a_sandbox_of_this_process_by_its_id(sandbox: Sandbox) -> None:
    async def ask() -> str | None:
        other = await AsyncSandbox.connect(sandbox.id)
        return (await other.run_code("x + 1")).value

    sandbox.run_code("x = 41")
    assert Sandbox.connect(sandbox.id).run_code("x + 1").value == "42"
    assert asyncio.run(ask()) == "42"
    gc.collect()
    assert sandbox.run_code("x").value == "41", "handles that did not make it do not close it"
    with pytest.raises(SandboxClosed):
        Sandbox.connect("sbx_nobody")
