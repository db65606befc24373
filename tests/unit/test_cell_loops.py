"""The loop of the cells after an interrupt that came right when a cell or a turn of background work began."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from ramet_guest.cells.asynchronous import CellLoops


class Gate:
    """Defers the interrupts of the test as the guest's does, and has none of its own."""

    cancel_awaiting: Any = None
    held = False

    def raise_pending(self) -> None:
        pass


@pytest.fixture
def loops() -> Iterator[CellLoops]:
    made = CellLoops(Gate())  # type: ignore[arg-type]
    yield made
    made.open().close()
    made.discard()


def interrupted_at(line: int, begin: Callable[[], object], gate: Gate) -> bool:
    """Runs something with an interrupt at its nth line before the loop turns. False if it has fewer."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_name == "_run_once":
            sys.settrace(None)
            return None
        if event == "line" and not gate.held and frame.f_code.co_name not in ("open", "_wrap_run"):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        begin()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


async def cell(values: list[int]) -> None:
    import asyncio

    for _ in range(5):
        await asyncio.sleep(0)
    values.append(1)


def test_a_cell_that_is_interrupted_before_its_loop_runs_stops_no_other_and_does_not_go_on(loops: CellLoops) -> None:
    line, more = 0, True
    while more:
        line += 1
        abandoned: list[int] = []
        values: list[int] = []
        begun = cell(abandoned)
        more = interrupted_at(line, lambda begun=begun: loops.run(begun), loops._gate)  # type: ignore[misc, arg-type]
        begun.close()
        loops.run(cell(values))
        assert (abandoned, values) == ([] if more else [1], [1]), line
    assert line > 10


def test_a_turn_that_is_interrupted_before_its_loop_runs_stops_no_cell(loops: CellLoops) -> None:
    loop, line, more = loops.open(), 0, True
    while more:
        line += 1
        values: list[int] = []
        more = interrupted_at(line, lambda: loops._step(loop), loops._gate)  # type: ignore[arg-type]
        loops.run(cell(values))
        assert values == [1], line
    assert line > 5
