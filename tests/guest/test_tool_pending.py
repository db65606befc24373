"""Tools that are called where they have to be awaited: a call that is not made never looks like one that was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.guest.guest_driver import Guest
from tests.guest.tool_engine import Call, Handler, ToolEngine, tool

StartEngine = Callable[[Handler], ToolEngine]
LOOKUP = tool("lookup", "", {"key": {}}, ["key"])
AWAITS = "import asyncio\nawait asyncio.sleep(0)\n"


def echo(call: Call) -> Any:
    return call.arguments["key"]


@pytest.fixture
def engine(start_engine: StartEngine, tool_guest: Guest) -> ToolEngine:
    engine = start_engine(echo)
    engine.give(tool_guest, [LOOKUP])
    return engine


@pytest.mark.parametrize(
    "statement", ["lookup(key=1)\nNone", "x = lookup(key=1)", "print(lookup(key=1))", "lookup(key=1)"]
)
def test_a_call_that_nobody_awaits_fails_its_cell_and_names_tool_and_line(
    tool_guest: Guest, engine: ToolEngine, statement: str
) -> None:
    outcome = tool_guest.run(AWAITS + statement)
    assert outcome.error is not None
    assert (outcome.exit_code, outcome.error["name"]) == (1, "ToolError")
    assert "lookup() in <cell 1>, line 3" in outcome.stderr
    assert "hint: write await lookup(...)" in outcome.stderr
    assert engine.calls == []
    assert tool_guest.run("await lookup(key=2)").value == "2"


@pytest.mark.parametrize("use", ["['text']", ".text", " + 1", " > 1"])
def test_a_call_that_is_taken_for_its_value_says_what_is_missing(
    tool_guest: Guest, engine: ToolEngine, use: str
) -> None:
    outcome = tool_guest.run(f"{AWAITS}lookup(key=1){use}")
    assert outcome.exit_code == 1
    assert "hint: write await lookup(...)" in outcome.stderr
    assert engine.calls == []


@pytest.mark.parametrize(
    "expression",
    [
        "await asyncio.gather(*[lookup(key=n) for n in range(3)])",
        "[await lookup(key=n) for n in range(3)]",
        "[await task for task in [asyncio.create_task(lookup(key=n)) for n in range(3)]]",
        "[await asyncio.wait_for(lookup(key=n), 20) for n in range(3)]",
        "[await asyncio.shield(lookup(key=n)) for n in range(3)]",
    ],
)
def test_calls_can_be_awaited_in_every_way(tool_guest: Guest, engine: ToolEngine, expression: str) -> None:
    outcome = tool_guest.run(AWAITS + expression)
    assert (outcome.value, outcome.stderr) == ("[0, 1, 2]", "")


def test_a_task_that_has_not_begun_when_its_cell_ends_is_no_forgotten_call(
    tool_guest: Guest, engine: ToolEngine
) -> None:
    assert tool_guest.run(AWAITS + "task = asyncio.create_task(lookup(key=5))").exit_code == 0
    assert tool_guest.run("await task").value == "5"


def test_a_call_that_is_cancelled_before_it_begins_is_no_forgotten_call(tool_guest: Guest, engine: ToolEngine) -> None:
    code = "task = asyncio.create_task(lookup(key=5))\ntask.cancel()\nawait asyncio.wait([task])\ntask.cancelled()"
    outcome = tool_guest.run(AWAITS + code)
    assert (outcome.value, outcome.stderr, engine.calls) == ("True", "", [])


def test_a_cell_that_failed_keeps_its_error_and_says_what_was_not_called(tool_guest: Guest, engine: ToolEngine) -> None:
    outcome = tool_guest.run(AWAITS + "x = lookup(key=1)\n1/0")
    assert outcome.error == {"name": "ZeroDivisionError", "message": "division by zero"}
    assert "note: called without await" in outcome.stderr


def test_forgotten_calls_are_told_within_bounds(tool_guest: Guest, engine: ToolEngine) -> None:
    calls = "\n".join("lookup(key=1)" for _ in range(10))
    outcome = tool_guest.run(AWAITS + calls + "\nfor n in range(10_000): lookup(key=n)")
    assert "and 8 more" in outcome.stderr
    assert len(outcome.stderr) < 1000
