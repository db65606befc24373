"""How calls of tools are answered: where handlers run, what is sent, and what happens when that fails."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ramet.client.handle import SandboxHandle
from ramet.client.operations import cells
from ramet.client.operations.steps import RECEIVE, ToolCalled, ToolCancelled
from ramet.client.operations.tool_calls import ToolFailure, one_way_answer
from ramet.client.tools import call_runner
from ramet.client.tools.answers import failure, is_small
from ramet.client.tools.call_runner import ToolCallRunner
from ramet.client.tools.tool import Tool, toolset
from ramet.client.tools.workers import Workers
from ramet.errors import LimitReached, OutcomeUnknown, ProtocolError, RametError, SandboxClosed, Unreachable
from ramet.protocol import calls
from ramet.protocol.calls import Outcome, encode_outcome
from ramet.protocol.frames import FROM_ENGINE, TO_ENGINE, Frame, FrameDecoder, encode, encode_header
from ramet.protocol.tools.values import encode_value
from ramet_guest.tools.returned_values import decode

WAIT_SECONDS = 30
CALL = {"call": "tc_1", "tool": "lookup", "accepts": ["arrow"]}


class Engine:
    """Takes answers, or fails as it is told. Both faces of a link in one."""

    remote = False
    running = True

    def __init__(self, *failures: RametError) -> None:
        self._failures = list(failures)
        self.attempts = 0
        self.answers: list[Frame] = []
        self.over = threading.Event()

    def link(self) -> Any:
        return _Link(self)

    def async_link(self) -> Any:
        return _AsyncLink(_Link(self))

    def check(self) -> None: ...

    def take(self, data: bytes) -> Frame:
        self.attempts += 1
        if self._failures:
            raise self._failures.pop(0)
        self.answers += FrameDecoder(TO_ENGINE).feed(data)
        self.over.set()
        return Frame(calls.ANSWER, {"taken": True}, b"")

    def value(self) -> Any:
        assert self.over.wait(WAIT_SECONDS)
        return decode(self.answers[0].blob)


class _Link:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sent = b""

    def send(self, data: bytes) -> None:
        self._sent += data

    def receive(self) -> Frame:
        return self._engine.take(self._sent)

    def leave(self) -> None: ...


class _AsyncLink:
    def __init__(self, link: _Link) -> None:
        self._link = link
        self.leave = link.leave

    async def send(self, data: bytes) -> None:
        self._link.send(data)

    async def receive(self) -> Frame:
        return self._link.receive()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_runner, "_PAUSES_SECONDS", (0.001,) * 3)


def handle_of(engine: Any, *tools: Tool) -> SandboxHandle:
    return SandboxHandle(engine, "sbx_1", owned=False, tools=toolset(tools))


def wait_until_over(calling: ToolCallRunner) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while calling._running:
        assert time.monotonic() < end
        time.sleep(0.001)


def called(engine: Engine, function: Callable[..., object], on_loop: bool = False) -> ToolCallRunner:
    calling = ToolCallRunner(handle_of(engine, Tool(function, name="lookup")), on_loop)
    calling.take(ToolCalled("tc_1", "lookup", (), b"{}"))
    return calling


# What is sent


def test_an_answer_names_its_sandbox_and_its_call() -> None:
    engine = Engine()
    called(engine, lambda: {"a": 1})
    assert engine.value() == {"a": 1}
    assert engine.answers[0].header == {"sandbox": "sbx_1", "call": "tc_1", "outcome": "value", "more": False}


def test_a_long_answer_goes_in_pieces_of_one_size() -> None:
    engine = Engine()
    called(engine, lambda: b"x" * 1_000_000)
    assert engine.over.wait(WAIT_SECONDS)
    first, *pieces, last = engine.answers
    assert (first.kind, first.header["more"], last.kind) == (calls.TOOL_ANSWER, True, calls.END)
    assert {piece.kind for piece in pieces} == {calls.CHUNK}
    assert len(first.blob) == calls.CHUNK_BYTES
    assert decode(first.blob + b"".join(piece.blob for piece in pieces)) == b"x" * 1_000_000


def test_a_tool_that_has_no_handler_here_is_unknown() -> None:
    engine = Engine()
    calling = called(engine, lambda: 1)
    assert engine.over.wait(WAIT_SECONDS)
    engine.over.clear()
    calling.take(ToolCalled("tc_2", "other", (), b"{}"))
    assert engine.over.wait(WAIT_SECONDS)
    assert engine.answers[1].header["kind"] == "unknown"


def test_a_tool_that_came_after_the_cell_was_handed_in_is_found() -> None:
    engine = Engine()
    handle = handle_of(engine)
    calling = ToolCallRunner(handle, False)
    handle.tools = toolset([{"name": "later", "handler": lambda: "here"}])
    calling.take(ToolCalled("tc_1", "later", (), b"{}"))
    assert engine.value() == "here"


@pytest.mark.parametrize("lost", [OutcomeUnknown("cut"), Unreachable("away"), LimitReached("too many")], ids=repr)
@pytest.mark.parametrize("on_loop", [False, True])
async def test_an_answer_that_may_be_lost_is_sent_again(lost: RametError, on_loop: bool) -> None:
    engine = Engine(lost, lost)

    async def coroutine() -> str:
        return "in the end"

    called(engine, coroutine if on_loop else lambda: "in the end", on_loop)
    await asyncio.to_thread(engine.over.wait, WAIT_SECONDS)
    assert engine.value() == "in the end"
    assert engine.attempts == 3


def test_an_answer_that_stays_lost_is_given_up_and_harms_nobody() -> None:
    engine = Engine(*[Unreachable("away")] * 4)
    wait_until_over(called(engine, lambda: 1))
    assert (engine.attempts, engine.answers) == (4, [])


def test_a_sandbox_that_is_gone_is_not_told_anything_twice() -> None:
    engine = Engine(SandboxClosed("closed"))
    wait_until_over(called(engine, lambda: 1))
    assert (engine.attempts, engine.answers) == (1, [])


# Giving up


def test_a_function_that_nobody_waits_for_is_let_run_and_its_value_goes_nowhere() -> None:
    engine = Engine()
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def wait() -> str:
        begun.set()
        released.wait(WAIT_SECONDS)
        ended.set()
        return "late"

    calling = called(engine, wait)
    assert begun.wait(WAIT_SECONDS)
    calling.take(ToolCancelled("tc_1"))
    calling.take(ToolCancelled("tc_1"))  # again is harmless
    released.set()
    assert ended.wait(WAIT_SECONDS)
    other = Engine()
    called(other, lambda: 1)
    assert other.value() == 1
    assert not engine.attempts


@pytest.mark.parametrize("how", ["cancelled", "ended"])
def test_a_coroutine_that_nobody_waits_for_is_cancelled_on_the_loop_of_blocking_callers(how: str) -> None:
    engine = Engine()
    begun, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    calling = called(engine, wait)
    assert begun.wait(WAIT_SECONDS)
    if how == "ended":
        calling.end()
    else:
        calling.take(ToolCancelled("tc_1"))
    assert cancelled.wait(WAIT_SECONDS)
    assert not engine.attempts


async def test_a_coroutine_that_cancels_itself_is_an_error_inside() -> None:
    engine = Engine()

    async def cancel() -> None:
        raise asyncio.CancelledError

    called(engine, cancel, on_loop=True)
    await asyncio.to_thread(engine.over.wait, WAIT_SECONDS)
    assert (engine.answers[0].header["outcome"], engine.answers[0].header["kind"]) == ("error", "error")


# Workers


def test_workers_do_as_much_at_once_as_there_are_threads_and_the_rest_afterwards() -> None:
    workers = Workers(threads_at_most=3)
    together, done = threading.Barrier(3), threading.Semaphore(0)
    threads: set[str] = set()

    def meet() -> None:
        together.wait(WAIT_SECONDS)
        threads.add(threading.current_thread().name + str(threading.get_ident()))
        assert threading.current_thread().daemon
        done.release()

    for _ in range(9):
        workers.submit(meet)
    assert all(done.acquire(timeout=WAIT_SECONDS) for _ in range(9))
    assert len(threads) <= 3


def test_a_thread_that_is_free_is_used_again() -> None:
    workers = Workers()
    for _ in range(20):
        done = threading.Event()
        workers.submit(done.set)
        assert done.wait(WAIT_SECONDS)
    assert workers._threads < 20


def test_one_sandbox_whose_tools_hang_leaves_threads_to_others() -> None:
    workers, released, done = Workers(of_a_sandbox=2), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        assert released.wait(WAIT_SECONDS)
        done.release()

    for _ in range(5):
        workers.submit(hang, "sbx_1")
    workers.submit(done.release, "sbx_2")
    assert done.acquire(timeout=WAIT_SECONDS)
    assert workers._threads <= 3
    released.set()
    assert all(done.acquire(timeout=WAIT_SECONDS) for _ in range(5))


def test_a_mistake_costs_no_thread(capsys: pytest.CaptureFixture[str]) -> None:
    workers, done = Workers(threads_at_most=1), threading.Event()
    workers.submit(lambda: 1 / 0)
    workers.submit(done.set)
    assert done.wait(WAIT_SECONDS)
    assert "ZeroDivisionError" in capsys.readouterr().err


# The operation


def play(operation: Any, *answers: bytes) -> Iterator[object]:
    """The steps other than sending and receiving."""
    frames = FrameDecoder(FROM_ENGINE).feed(b"".join(answers))
    step = next(operation)
    try:
        while True:
            if isinstance(step, bytes):
                step = next(operation)
            elif step is RECEIVE:
                step = operation.send(next(frames))
            else:
                yield step
                step = next(operation)
    except StopIteration as stop:
        yield stop.value


RESULT = encode_outcome(Outcome(cell_id=1, exit_code=0, state="kept"))
FRAMES = (encode(calls.TOOL_CALL, CALL, b"{}"), encode(calls.TOOL_CANCELLED, {"call": "tc_1"}), RESULT)
STEPS = [ToolCalled("tc_1", "lookup", ("arrow",), b"{}"), ToolCancelled("tc_1")]


def test_a_cell_tells_of_calls_between_its_other_frames() -> None:
    *steps, result = play(cells.run("sbx", "", "python", None, tools=True), *FRAMES)
    assert steps == STEPS
    assert result.exit_code == 0  # type: ignore[attr-defined]
    *steps, emitted, _ = play(cells.stream("sbx", "", "python", None, tools=True), *FRAMES)
    assert steps == STEPS
    assert emitted.item.code == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("operation", [cells.run, cells.stream])
def test_calls_that_nobody_asked_for_are_a_protocol_error(operation: Any) -> None:
    with pytest.raises(ProtocolError, match="a frame of kind 49"):
        list(play(operation("sbx", "", "python", None), *FRAMES))


def test_only_a_cell_with_tools_says_so() -> None:
    def header(tools: bool) -> Any:
        request = next(cells.run("sbx", "", "python", None, tools=tools))
        assert isinstance(request, bytes)
        return next(FrameDecoder(TO_ENGINE).feed(request)).header

    assert header(True)["tools"] is True
    assert "tools" not in header(False)


def test_only_a_short_answer_goes_one_way() -> None:
    assert one_way_answer("sbx", "tc_1", encode_value(bytes(calls.CHUNK_BYTES))) is None
    data = one_way_answer("sbx", "tc_1", ToolFailure("error", "why"))
    assert data is not None
    frame = next(FrameDecoder(TO_ENGINE).feed(data))
    assert frame.header == {
        "sandbox": "sbx",
        "call": "tc_1",
        "more": False,
        "quiet": True,
        "outcome": "error",
        "kind": "error",
        "message": "why",
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, True),
        ({"a": [1, "x" * 1000, b"y"]}, True),
        ("x" * 100_000, False),
        ([0] * 1000, False),
        ([[0] * 100] * 100, False),
        ({"a": object()}, False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_written_on_the_loop_is_small(value: object, expected: bool) -> None:
    assert is_small(value) is expected


# What is told of errors


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (shutil.Error([("/home/a", "/home/b", "[Errno 2] No such file: '/home/a'")]), "No such file: '...'"),
        (shutil.SameFileError("'/home/a' and PosixPath('/home/a') are the same file"), "are the same file"),
        (
            OSError(2, "Failed to open local file '/home/a/x'. Detail: none"),
            "Failed to open local file '...'. Detail: none",
        ),
        (FileNotFoundError("/home/a/secret.txt"), "FileNotFoundError"),
        (subprocess.CalledProcessError(1, ["/home/a/bin", "x"]), "returned non-zero exit status 1"),
        (SyntaxError("never closed", ("/home/a/app.py", 1, 1, "x = (")), "never closed"),
        (OSError("the disk is on fire"), "the disk is on fire"),
        (ValueError("no product '/a/b' in /home/x"), "no product '/a/b' in /home/x"),
    ],
)
def test_a_message_about_files_does_not_say_where_they_are(error: Exception, told: str) -> None:
    message = failure(error, "look").message
    assert told in message
    assert isinstance(error, ValueError) or "/home" not in message
    assert "app.py" not in message


@pytest.mark.parametrize("character", ["a", "\x00", "\N{GRINNING FACE}", "\ud800"])
def test_a_message_fits_into_a_header_whatever_is_in_it(character: str) -> None:
    message = failure(ValueError(character * 100_000), "look").message
    assert message.endswith(" ...")
    assert 2000 < len(message) <= len(encode_header(message)) < 60_100
