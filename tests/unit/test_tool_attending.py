"""Who reads for a cell whose code calls tools, and in which threads these run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ramet.client.operations.steps import RECEIVE, Operation, ToolCalled, ToolCancelled
from ramet.client.tools import call_reader
from ramet.client.tools.call_reader import FrameSender, ToolCallReader
from ramet.client.tools.workers import Workers
from ramet.protocol.frames import Frame

WAIT_SECONDS = 30
RESULT = Frame(0, {}, b"the result")


class Link:
    """Has one frame, which comes when it is told to come."""

    def __init__(self) -> None:
        self.comes = threading.Event()
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def receive(self) -> Frame:
        assert self.comes.wait(WAIT_SECONDS)
        return RESULT

    def leave(self) -> None: ...


class Call:
    sandbox_id = "sbx_1"

    def __init__(self, work: Callable[[FrameSender], None], quick: bool) -> None:
        self._work = work
        self.may_run_in_reader = quick

    def run(self, sender: FrameSender | None = None) -> None:
        assert sender is not None
        self._work(sender)


class Calls:
    """The calls of a cell, by the names of their tools."""

    def __init__(self, **made: Call) -> None:
        self._made = made

    def accept(self, step: ToolCalled) -> Call:
        return self._made[step.tool]

    def take(self, step: ToolCalled | ToolCancelled) -> None: ...

    def end(self) -> None: ...


def cell(*tools: str) -> Operation[bytes]:
    """Calls these tools at the same time, and ends."""
    for tool in tools:
        yield ToolCalled("tc_1", tool, (), b"{}")
    frame = yield RECEIVE
    assert isinstance(frame, Frame)
    return frame.blob


def attended(link: Any, calls: Calls, operation: Operation[bytes]) -> Any:
    return ToolCallReader(link, operation, calls).result(next(operation))


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_reader, "workers", Workers(1))


def test_a_quick_tool_runs_in_the_thread_of_the_caller() -> None:
    threads: list[threading.Thread] = []
    link = Link()
    link.comes.set()
    calls = Calls(quick=Call(lambda sender: threads.append(threading.current_thread()), quick=True))
    assert attended(link, calls, cell("quick", "quick")) == b"the result"
    assert threads == [threading.current_thread()] * 2


def test_whoever_reads_for_a_caller_takes_no_worker_from_the_tools() -> None:
    link, other_ran = Link(), threading.Event()

    def wait_for_the_other(sender: FrameSender) -> None:
        assert other_ran.wait(WAIT_SECONDS)
        link.comes.set()

    calls = Calls(
        once_quick=Call(wait_for_the_other, quick=True),
        other=Call(lambda sender: other_ran.set(), quick=False),
    )
    assert attended(link, calls, cell("once_quick", "other")) == b"the result"


def test_what_a_tool_answers_after_the_end_goes_nowhere() -> None:
    """The connection may be that of another call by then."""
    link, ended, answered = Link(), threading.Event(), threading.Event()
    link.comes.set()

    def answer_late(sender: FrameSender) -> None:
        assert ended.wait(WAIT_SECONDS)
        sender.send(b"late")
        answered.set()

    assert attended(link, Calls(late=Call(answer_late, quick=False)), cell("late")) == b"the result"
    ended.set()
    assert answered.wait(WAIT_SECONDS)
    assert link.sent == []


def test_an_error_in_the_thread_of_the_caller_is_the_callers() -> None:
    def interrupted(sender: FrameSender) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attended(Link(), Calls(quick=Call(interrupted, quick=True)), cell("quick"))


def test_an_error_of_whoever_reads_for_the_caller_reaches_it() -> None:
    broken = threading.Event()

    def breaking() -> Operation[bytes]:
        yield ToolCalled("tc_1", "once_quick", (), b"{}")
        broken.set()
        raise ValueError("no frame")

    def wait_for_it(sender: FrameSender) -> None:
        assert broken.wait(WAIT_SECONDS)

    with pytest.raises(ValueError, match="no frame"):
        attended(Link(), Calls(once_quick=Call(wait_for_it, quick=True)), breaking())
