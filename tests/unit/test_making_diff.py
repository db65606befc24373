"""Diff in the engine, with a scripted machine: names of both sides, and guests that do not answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.making import diff as diffs
from ramet.errors import ExecutionCancelled, ForkFailed, SandboxClosed, SandboxLost
from ramet.protocol import guest
from ramet.protocol.frames import encode
from tests.unit.scripted import ScriptedBody, ScriptedDeath
from tests.unit.scripted_engine import SETTINGS, Engine, Work, pair, run, work


def named(**values: str | None) -> bytes:
    """What a guest says of its names: each an int, with a short value that is also its fingerprint."""
    rows = [[name, "int", value or "?", 28, None if value is None else value * 32] for name, value in values.items()]
    return encode(guest.NAMES, {"omitted": 0}, "\n".join(map(json.dumps, rows)).encode())


async def ask_names(body: ScriptedBody, **values: str | None) -> None:
    assert (await body.next_frame()).kind == guest.ASK_NAMES
    body.send(named(**values))


def diff(engine: Engine, one: Sandbox, other: Sandbox) -> Work:
    return work(diffs.diff(engine.registry, one, other, None, engine.caller))


async def test_a_diff_tells_names_that_were_added_removed_and_changed(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    waiting = diff(engine, parent, child)
    await ask_names(parent_body, same="1", gone="2", other="3", unknown=None, dark=None)
    await ask_names(child_body, same="1", new="4", other="5", unknown="6", dark=None)
    found = await waiting
    assert [(change.name, change.change, change.approximate) for change in found.names] == [
        ("gone", "removed", False),
        ("new", "added", False),
        ("other", "changed", False),
        ("unknown", "changed", True),
    ]
    assert str(found).splitlines() == [
        "names: 1 added, 2 changed, 1 removed",
        "  - gone: int 2",
        "  + new: int 4",
        "  ~ other: int 3 -> int 5",
        "  ~ unknown: int ? -> int 6 (approximate)",
        "names that could not be compared: dark",
    ]
    await run(parent, parent_body)
    await run(child, child_body)


async def test_a_sandbox_does_not_differ_from_itself_and_a_dead_one_has_no_names(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    assert (await diff(engine, parent, parent)).is_empty
    child_body.die(ScriptedDeath(1, None))
    waiting = diff(engine, parent, child)
    await ask_names(parent_body, a="1")
    assert [change.change for change in (await waiting).names] == ["removed"]


async def test_a_guest_that_tells_no_names_is_interrupted_but_never_killed(tmp_path: Path) -> None:
    settings = replace(SETTINGS, names_interrupt_seconds=0.01, names_at_most_seconds=1.0)
    engine = Engine(tmp_path, settings)
    parent, parent_body, child, child_body = await pair(engine)
    waiting = diff(engine, parent, child)
    await ask_names(child_body)
    with pytest.raises(SandboxLost, match="did not list its names"):
        await waiting
    assert parent_body.signals == [2, 2, guest.HARD_INTERRUPT_SIGNAL]
    with pytest.raises(ForkFailed, match="is still listing its names for a diff"):
        await engine.fork(parent)
    # It answers after all, and everything is as it was.
    await ask_names(parent_body)
    await run(parent, parent_body)
    await engine.fork(parent)
    await engine.registry.close()


async def test_a_diff_ends_when_one_side_is_closed(engine: Engine) -> None:
    parent, parent_body, child, _ = await pair(engine)
    waiting = diff(engine, parent, child)
    await parent_body.next_frame()
    closing = work(engine.registry.close_sandbox(child.id))
    parent_body.send(named())
    with pytest.raises(SandboxClosed, match="was closed"):
        await waiting
    await closing
    await run(parent, parent_body)


async def test_an_answer_of_the_wrong_kind_ends_the_repl(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    waiting = diff(engine, parent, child)
    await ask_names(child_body)
    await parent_body.next_frame()
    parent_body.send(encode(guest.CONFIGURED, {"error": None}))
    with pytest.raises(SandboxLost):
        await waiting
    assert parent_body.signals == [9]


async def test_a_diff_that_fails_at_the_files_leaves_both_unharmed(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    engine.machine.failing = "diff"
    waiting = diff(engine, parent, child)
    await ask_names(parent_body)
    await ask_names(child_body)
    with pytest.raises(ForkFailed):
        await waiting
    await run(parent, parent_body)
    await run(child, child_body)


async def test_a_comparison_of_files_ends_with_its_caller_and_both_sandboxes_go_on(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    engine.machine.gate("diff")
    waiting = diff(engine, parent, child)
    await ask_names(parent_body)
    await ask_names(child_body)
    engine.caller.leave()
    with pytest.raises(ExecutionCancelled):
        await waiting
    await run(parent, parent_body)
    await run(child, child_body)


async def test_a_sandbox_closes_while_its_files_are_compared(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    engine.machine.gate("diff")
    waiting = diff(engine, parent, child)
    await ask_names(parent_body)
    await ask_names(child_body)
    await work(engine.registry.close_sandbox(child.id))
    with pytest.raises(SandboxClosed, match="was closed"):
        await waiting
    await run(parent, parent_body)


async def test_names_that_make_no_sense_end_the_repl(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    waiting = diff(engine, parent, child)
    await ask_names(child_body)
    await parent_body.next_frame()
    parent_body.send(encode(guest.NAMES, {"omitted": 0}, b"[" + b"[]," * 2000 + b"[]]"))
    with pytest.raises(SandboxLost, match="sent an invalid list of names"):
        await waiting
    assert parent_body.signals == [9]
