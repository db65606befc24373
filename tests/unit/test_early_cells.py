"""Cells of one caller that arrive in another order than they were sent in."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ramet.client.operations import cells
from ramet.client.operations.cells import CellOrder
from ramet.engine.cells.cell import Cell
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.output.collecting import Collecting
from ramet.engine.settings import Settings
from ramet.errors import ExecutionCancelled, LimitReached, RametError
from ramet.protocol.calls import RUN, Outcome
from ramet.protocol.frames import TO_ENGINE, FrameDecoder
from tests.unit.scripted import ScriptedBody
from tests.unit.scripted_engine import QUICK, SPEC

SETTINGS = replace(QUICK, early_seconds=30.0, waiting_cells=5)


@pytest.fixture
def settings() -> Settings:
    return SETTINGS


def name(number: int) -> str:
    return f"exe_{number:032x}"


class Sent:
    """A cell with an id, sent after another."""

    def __init__(self, sandbox: Sandbox, number: int, after: int | None) -> None:
        self.errors: list[RametError] = []
        self.outcomes: list[Outcome] = []
        self.execution = sandbox.executions.begin(name(number), True, lambda frame: None)
        sink = Collecting(SETTINGS, lambda stream: None)
        code = b"%d" % number
        self.cell = Cell("python", code, None, sink, self.outcomes.append, self.errors.append, name(number))
        self.execution.cell = self.cell
        sandbox.queue.submit(self.cell, None if after is None else name(after))


async def run_order(body: ScriptedBody, count: int) -> list[int]:
    order = []
    for number in range(1, count + 1):
        async with asyncio.timeout(5):
            order.append(int((await body.next_frame()).blob))
        body.done(number)
    return order


@pytest.mark.parametrize("arrival", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)])
async def test_cells_run_in_the_order_in_which_they_were_sent(
    sandbox: Sandbox, body: ScriptedBody, arrival: tuple[int, ...]
) -> None:
    for number in arrival:
        Sent(sandbox, number, number - 1 if number else None)
    assert await run_order(body, 4) == [0, 1, 2, 3]


async def test_a_cell_does_not_wait_for_ever_for_one_that_never_comes(body: ScriptedBody) -> None:
    sandbox = Sandbox("sbx_test", SPEC, body, replace(SETTINGS, early_seconds=0.01))
    Sent(sandbox, 2, 1)
    Sent(sandbox, 3, 2)
    assert await run_order(body, 2) == [2, 3]
    await sandbox.close()


async def test_a_cell_that_came_too_early_counts_and_can_be_given_up(sandbox: Sandbox, body: ScriptedBody) -> None:
    second, third = Sent(sandbox, 2, 1), Sent(sandbox, 3, 2)
    assert sandbox.queue.waiting == 2
    assert sandbox.queue.cancel(second.cell, "its caller went away")
    assert isinstance(second.errors[0], ExecutionCancelled)
    sandbox.queue.abandon(third.cell)
    assert sandbox.queue.waiting == 0
    Sent(sandbox, 1, None)
    assert await run_order(body, 1) == [1]


async def test_cells_that_came_too_early_are_bounded_and_end_with_the_sandbox(sandbox: Sandbox) -> None:
    early = [Sent(sandbox, number, number - 1) for number in range(2, 7)]
    with pytest.raises(LimitReached):
        Sent(sandbox, 9, 8)
    await sandbox.close()
    assert [type(one.errors[0]) for one in early] == [ExecutionCancelled] * 5


def header_of(sent: object) -> dict[str, object]:
    assert isinstance(sent, bytes)
    (frame,) = FrameDecoder(TO_ENGINE).feed(sent)
    assert frame.kind == RUN
    return dict(frame.header)


def test_a_handle_names_the_cell_before_only_while_that_is_under_way() -> None:
    order = CellOrder()
    first, second, third = (cells.run("sbx_1", "1", "python", None, order=order) for _ in range(3))
    headers = [header_of(next(one)) for one in (first, second)]
    assert "after" not in headers[0]
    assert headers[1]["after"] == headers[0]["execution"]
    second.close()
    assert header_of(next(third))["after"] == headers[0]["execution"]
    first.close()
    third.close()
    assert "after" not in header_of(next(cells.run("sbx_1", "1", "python", None, order=order)))
    assert "execution" not in header_of(next(cells.run("sbx_1", "1", "python", None)))
