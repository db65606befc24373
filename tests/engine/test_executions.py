"""Executions of real cells: kept without their caller, followed, cancelled, and bounded."""

from __future__ import annotations

import pytest

from ramet.errors import ExecutionCancelled, ExecutionUnknown
from ramet.protocol import calls
from tests.engine.conftest import Connect
from tests.engine.frames_client import Line, begin, create, execution, run, until

UNTIL_GO = """
import os, time
print("begun", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.005)
print("gone on")
"""


def go(line: Line, sandbox: str) -> None:
    line.ask(calls.WRITE, sandbox=sandbox, path="/tmp/go", more=False)


def state(line: Line, sandbox: str, number: int) -> object:
    try:
        return line.ask(calls.FETCH, sandbox=sandbox, execution=execution(number), wait=False).get("state")
    except ExecutionUnknown:
        return None  # it is still on its way


def waiting(line: Line, sandbox: str) -> object:
    rows = line.ask(calls.SANDBOXES)["sandboxes"]
    return next(row["waiting"] for row in rows if row["id"] == sandbox)


@pytest.mark.parametrize("stream", [False, True])
def test_a_kept_cell_outlives_its_caller_and_so_does_one_that_waits(connect: Connect, line: Line, stream: bool) -> None:
    sandbox = create(line)
    callers = [connect(), connect()]
    begin(callers[0], sandbox, UNTIL_GO, stream, execution=execution(1), on_disconnect="keep")
    until(lambda: state(line, sandbox, 1) == "running")
    begin(callers[1], sandbox, "print('second')", stream, execution=execution(2), on_disconnect="keep")
    until(lambda: waiting(line, sandbox) == 1)
    for caller in callers:
        caller.close()
    followers = [connect(), connect()]
    for follower in followers:
        follower.send(calls.FETCH, sandbox=sandbox, execution=execution(1), wait=True)
    go(line, sandbox)
    for follower in followers:
        frames = follower.frames()
        assert b"".join(frame.blob for frame in frames) == b"begun\ngone on\n"
        assert frames[-1].header["exit_code"] == 0
    line.send(calls.FETCH, sandbox=sandbox, execution=execution(2), wait=True)
    assert b"".join(frame.blob for frame in line.frames()) == b"second\n"


def test_a_cell_that_is_not_kept_is_interrupted(connect: Connect, line: Line) -> None:
    sandbox = create(line)
    caller = connect()
    begin(caller, sandbox, UNTIL_GO, execution=execution(1))
    until(lambda: state(line, sandbox, 1) == "running")
    caller.close()
    answer = line.ask(calls.FETCH, sandbox=sandbox, execution=execution(1), wait=True)
    assert (answer["interrupted"], answer["cause"]) == (True, "interrupt")


def test_cancelling_drops_what_waits_and_interrupts_what_runs(connect: Connect, line: Line) -> None:
    sandbox = create(line)
    running, queued = connect(), connect()
    begin(running, sandbox, UNTIL_GO, stream=True, execution=execution(1))
    assert running.frame().blob == b"begun\n"
    begin(queued, sandbox, "print('never')", execution=execution(2))
    until(lambda: waiting(line, sandbox) == 1)
    for number in (2, 1):
        assert line.ask(calls.CANCEL, sandbox=sandbox, execution=execution(number)) == {"cancelled": True}
    with pytest.raises(ExecutionCancelled):
        queued.frames()
    assert running.frames()[-1].header["interrupted"] is True
    assert line.ask(calls.CANCEL, sandbox=sandbox, execution=execution(1)) == {"cancelled": False}
    with pytest.raises(ExecutionCancelled):
        line.ask(calls.FETCH, sandbox=sandbox, execution=execution(2), wait=True)


def test_a_long_stream_is_recorded_to_its_end_within_bounds(connect: Connect, line: Line) -> None:
    sandbox = create(line)
    caller = connect()
    code = "for number in range(40):\n    print('%07d' % number * 12500, end='')\nprint('end')"
    begin(caller, sandbox, code, stream=True, execution=execution(1), on_disconnect="keep")
    caller.frame()
    caller.close()
    line.send(calls.FETCH, sandbox=sandbox, execution=execution(1), wait=True)
    assert line.frames()[-1].kind == calls.RESULT
    line.send(calls.FETCH, sandbox=sandbox, execution=execution(1), wait=True)
    found = line.frames()
    frames = [frame.blob for frame in found[:-1]]
    kept = sum(map(len, frames))
    assert frames[-1].endswith(b"end\n")
    assert 500_000 < kept <= 1 << 20
    assert found[0].header["dropped_bytes"] == 40 * 7 * 12500 + 4 - kept


def test_the_last_hundred_are_kept(line: Line) -> None:
    sandbox = create(line)
    for number in range(102):
        run(line, sandbox, f"print({number})", execution=execution(number))
    for number in (0, 1):
        with pytest.raises(ExecutionUnknown):
            line.ask(calls.FETCH, sandbox=sandbox, execution=execution(number), wait=True)
    line.send(calls.FETCH, sandbox=sandbox, execution=execution(2), wait=True)
    assert line.frames()[0].blob == b"2\n"
