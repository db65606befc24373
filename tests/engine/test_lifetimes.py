"""Lifetimes of real sandboxes, persistent ones, and what those who watch hear of it."""

from __future__ import annotations

import pytest

from ramet.errors import ExecutionCancelled, SandboxClosed
from ramet.protocol import calls
from tests.engine.conftest import Connect
from tests.engine.frames_client import Line, begin, create, ended, run, until


def test_a_running_cell_is_cut_off_when_the_time_is_over(connect: Connect, line: Line) -> None:
    watcher = connect()
    watcher.send(calls.WATCH)
    watcher.frame()
    sandbox = create(line, timeout_seconds=0.5)
    assert watcher.frame().header["event"] == "begun"
    begin(line, sandbox, "import time\ntime.sleep(600)")
    with pytest.raises(ExecutionCancelled, match="its lifetime was over"):
        line.frames()
    news = watcher.frame().header
    assert (news["event"], news["id"], news["cause"]) == ("ended", sandbox, "timeout")
    error = ended(line, sandbox)
    assert error is not None
    assert (error.details["cause"], error.message) == ("timeout", news["message"])


def test_an_idle_sandbox_ends_and_a_busy_one_does_not(connect: Connect, line: Line) -> None:
    busy = create(line, idle_timeout_seconds=0.3)
    runner = connect()
    begin(runner, busy, "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.005)")
    idle = create(line, idle_timeout_seconds=0.3)
    until(lambda: ended(line, idle) is not None)
    error = ended(line, idle)
    assert error is not None
    assert error.details["cause"] == "idle"
    assert "not used for 0.3 seconds" in error.message
    line.ask(calls.WRITE, sandbox=busy, path="/tmp/go", more=False)
    assert runner.frames()[-1].header["exit_code"] == 0
    until(lambda: ended(line, busy) is not None)


def test_a_sandbox_with_an_attached_terminal_is_used(connect: Connect, line: Line) -> None:
    sandbox = create(line, idle_timeout_seconds=0.5)
    asked: dict[str, object] = {"argv": ["/bin/sh"], "env": {}, "cwd": None, "cols": 80, "rows": 24}
    line.send_frame(calls.TERMINAL_OPEN, {"sandbox": sandbox, **asked})
    terminal = line.frames()[-1].header["terminal"]
    attached = connect()
    attached.send(calls.TERMINAL_ATTACH, sandbox=sandbox, terminal=terminal, since=0)
    attached.frame()  # its prompt
    other = create(line, idle_timeout_seconds=0.5)
    until(lambda: ended(line, other) is not None)
    assert ended(line, sandbox) is None
    attached.close()
    until(lambda: ended(line, sandbox) is not None)


def test_an_extended_sandbox_lives_on(line: Line) -> None:
    extended = create(line, timeout_seconds=0.5, idle_timeout_seconds=0.5)
    answer = line.ask(calls.EXTEND, sandbox=extended, timeout_seconds=600, idle_timeout_seconds=600)
    assert answer["expires_ms"] > line.ask(calls.INFO, sandbox=extended)["created_ms"] + 590_000
    other = create(line, timeout_seconds=0.5)
    until(lambda: ended(line, other) is not None)
    run(line, extended, "1")


@pytest.mark.parametrize("how", ["closed", "timeout", "idle"])
def test_a_persistent_sandbox_goes_on_where_it_ended(line: Line, how: str) -> None:
    lifetimes = {"closed": {}, "timeout": {"timeout_seconds": 1.0}, "idle": {"idle_timeout_seconds": 0.3}}
    sandbox = create(line, "me", persistent=True, **lifetimes[how])
    run(line, sandbox, "import threading\nkept = [6 * 7]\nopen('/root/file', 'w').write('also kept')")
    if how == "closed":
        line.ask(calls.CLOSE, sandbox=sandbox, owner="me")
    until(lambda: ended(line, sandbox) is not None)
    error = ended(line, sandbox)
    assert error is not None
    assert error.details["cause"] == how
    lifetime = {"timeout_seconds": 600.0, "idle_timeout_seconds": None}
    first = line.ask(calls.RESUME, space=sandbox, owner="me", lifetime=lifetime, persistent=True)["id"]
    second = line.ask(calls.RESUME, space=sandbox, owner="me", lifetime=lifetime, persistent=False)["id"]
    for resumed in (first, second):
        begin(line, resumed, "print(kept, open('/root/file').read())")
        assert line.frames()[-1].blob == b"[42] also kept\n"
    # A resumed one that is persistent is kept again, as it has become.
    run(line, first, "kept.append(1)")
    line.ask(calls.CLOSE, sandbox=first, owner="me")
    again = line.ask(calls.RESUME, space=first, owner="me", lifetime=lifetime, persistent=False)["id"]
    begin(line, again, "print(kept)")
    assert line.frames()[-1].blob == b"[42, 1]\n"
    line.ask(calls.DISCARD, space=sandbox, owner="me")
    with pytest.raises(SandboxClosed):
        line.ask(calls.RESUME, space=sandbox, owner="me", lifetime=None, persistent=False)


def test_a_persistent_sandbox_is_kept_though_a_cell_runs_at_its_end(connect: Connect, line: Line) -> None:
    sandbox = create(line, persistent=True)
    run(line, sandbox, "kept = 1")
    runner = connect()
    begin(runner, sandbox, "print('begun', flush=True)\nwhile True: pass", stream=True)
    assert runner.frame().blob == b"begun\n"
    line.ask(calls.CLOSE, sandbox=sandbox)
    with pytest.raises(ExecutionCancelled, match="was closed"):
        runner.frames()
    resumed = line.ask(calls.RESUME, space=sandbox, lifetime=None, persistent=False)["id"]
    begin(line, resumed, "print(kept)")
    assert line.frames()[-1].blob == b"1\n"


def test_a_child_tells_its_parent_and_has_its_lifetime(line: Line) -> None:
    parent = create(line, "me", timeout_seconds=600)
    run(line, parent, "print('of the parent')")
    child = line.ask(calls.FORK, sandbox=parent, count=1, reseed=False, owner="me")["children"][0]["id"]
    info = line.ask(calls.INFO, sandbox=child, owner="me")
    assert (info["parent"], info["owner"], info["persistent"]) == (parent, "me", False)
    assert abs(info["expires_ms"] - info["created_ms"] - 600_000) < 1000
    line.send(calls.REPLAY, sandbox=child)
    assert [frame.kind for frame in line.frames()] == [calls.ANSWER]
    run(line, child, "print('of the child')")
    line.ask(calls.MERGE, sandbox=parent, winner=child, owner="me")
    line.send(calls.REPLAY, sandbox=parent, owner="me")
    assert [frame.blob for frame in line.frames() if frame.blob] == [b"of the parent\n", b"of the child\n"]


def test_figures_and_lists(line: Line) -> None:
    mine, yours = create(line, "me"), create(line, "you")
    run(line, mine, "x = bytearray(8 << 20)")
    run(line, yours, "1")  # one that has run nothing has touched nothing of its template yet
    rows = line.ask(calls.SANDBOXES, owner="me")["sandboxes"]
    assert [row["id"] for row in rows] == [mine]
    stats = line.ask(calls.STATS)
    assert stats["owners"]["me"]["states"] == {"idle": 1, "running": 0, "lost": 0, "hibernated": 0}
    assert stats["owners"]["me"]["memory_unique_bytes"] > 8 << 20
    assert stats["owners"]["you"]["memory_shared_bytes"] > 1 << 20
    assert stats["pool"]["hits"] + stats["pool"]["misses"] >= 2
    with pytest.raises(SandboxClosed):
        line.ask(calls.INFO, sandbox=yours, owner="me")
