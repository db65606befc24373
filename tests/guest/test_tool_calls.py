"""Calls of tools: at the same time, from threads and processes, interrupted, and over connections that break."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.guest.guest_driver import HARD_SIGNAL, PATIENCE_SECONDS, PREFIX, Guest
from tests.guest.tool_engine import ANSWER, MORE, Call, Failure, Handler, Raw, ToolEngine, encode, tool

LOOKUP = tool("lookup", "", {"key": {}}, ["key"])
StartEngine = Callable[[Handler], ToolEngine]


def echo(call: Call) -> Any:
    return call.arguments["key"]


def together(count: int) -> Handler:
    """Answers only when so many calls wait at the same time."""
    barrier = threading.Barrier(count)

    def handler(call: Call) -> Any:
        barrier.wait(PATIENCE_SECONDS)
        return call.arguments["key"]

    return handler


class Waiting:
    """Answers "wait" never: tells that it has come, and waits until the caller hangs up."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.given_up = threading.Event()

    def __call__(self, call: Call) -> Any:
        if call.arguments["key"] == "wait":
            self.begun.set()
            call.connection.wait_until_hung_up()
            self.given_up.set()
            return None
        return call.arguments["key"]

    def expect(self) -> None:
        assert self.begun.wait(PATIENCE_SECONDS)


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.mark.parametrize(
    "code",
    [
        "await asyncio.gather(*[lookup(key=n) for n in range(5)])",
        "async def f(): return await asyncio.gather(*[lookup(key=n) for n in range(5)])\nasyncio.run(f())",
        "tasks = [asyncio.create_task(lookup(key=n)) for n in range(5)]\n[await task for task in tasks]",
        "from concurrent.futures import ThreadPoolExecutor\nlist(ThreadPoolExecutor(5).map(lookup, range(5)))",
        "await asyncio.gather(*[asyncio.to_thread(lookup, n) for n in range(5)])",
    ],
)
def test_calls_that_are_made_together_wait_together(tool_guest: Guest, start_engine: StartEngine, code: str) -> None:
    start_engine(together(5)).give(tool_guest, [LOOKUP])
    outcome = tool_guest.run("import asyncio\n" + code)
    assert outcome.value == "[0, 1, 2, 3, 4]", outcome.stderr


def test_a_loop_of_another_maker_can_await_tools(tool_guest: Guest, start_engine: StartEngine) -> None:
    pytest.importorskip("uvloop")
    start_engine(together(3)).give(tool_guest, [LOOKUP])
    code = (
        "import asyncio, uvloop\nasync def f(): return await asyncio.gather(*[lookup(key=n) for n in range(3)])\n"
        "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n    print(runner.run(f()))"
    )
    outcome = tool_guest.run(code)
    assert outcome.stdout == "[0, 1, 2]\n", outcome.stderr


def test_many_awaited_calls_share_a_bounded_number_of_connections(tool_guest: Guest, start_engine: StartEngine) -> None:
    engine = start_engine(echo)
    engine.give(tool_guest, [LOOKUP])
    code = "import asyncio\nsum(await asyncio.gather(*[lookup(key=n) for n in range(1000)]))"
    assert tool_guest.run(code).value == str(sum(range(1000)))
    assert len(engine.calls) == 1000
    assert len(engine.connections) <= 64, "more than an engine takes of one sandbox"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while sum(not connection.closed.is_set() for connection in engine.connections) > 8:
        assert time.monotonic() < deadline, "too many connections are kept"
        time.sleep(0.01)


def test_one_connection_carries_any_number_of_calls(tool_guest: Guest, start_engine: StartEngine) -> None:
    engine = start_engine(echo)
    engine.give(tool_guest, [LOOKUP])
    code = (
        "import asyncio, socket\nsocket.setdefaulttimeout(0.001)\n"
        "plain = [lookup(key=n) for n in range(50)]\n"
        "async def f(): return [await lookup(key=n) for n in range(50)]\n"
        "asyncio.run(f()) == plain == [lookup(key=n) for n in range(50)]"
    )
    assert tool_guest.run(code).value == "True"
    assert len(engine.connections) == 1


def test_child_processes_call_over_connections_of_their_own(tool_guest: Guest, start_engine: StartEngine) -> None:
    engine = start_engine(together(2))
    engine.give(tool_guest, [LOOKUP])
    code = (
        "import asyncio, multiprocessing as mp, os\n"
        "await asyncio.gather(lookup(key=1), lookup(key=2))\n"  # leaves idle connections, which a child must not use
        "with mp.get_context('fork').Pool(2) as pool:\n    print(pool.map(lookup, [3, 4], chunksize=1))\n"
        "child = os.fork()\n"
        "if child == 0:\n    os._exit(lookup(key=7))\n"
        "other = os.fork()\n"
        "if other == 0:\n    os._exit(lookup(key=8))\n"
        "print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (child, other)])"
    )
    outcome = tool_guest.run(code)
    assert outcome.stdout == "[3, 4]\n[7, 8]\n", outcome.stderr
    assert len(engine.connections) == 6


def test_a_tool_error_crosses_from_a_child_process(tool_guest: Guest, start_engine: StartEngine) -> None:
    start_engine(lambda call: Raw(b"")).give(tool_guest, [LOOKUP])
    code = (
        "import multiprocessing as mp\nwith mp.get_context('fork').Pool(1) as pool:\n"
        "    try: pool.apply(lookup, (1,))\n    except ToolError as error: print(error.kind, error.tool)"
    )
    assert tool_guest.run(code).stdout == "gone lookup\n"


def test_workers_that_are_programs_of_their_own_call_tools_too(tool_guest: Guest, start_engine: StartEngine) -> None:
    pytest.importorskip("joblib")

    def handler(call: Call) -> Any:
        if call.arguments["key"] == "bad":
            raise Failure("error", "not that one")
        return call.arguments["key"]

    start_engine(handler).give(tool_guest, [LOOKUP])
    code = (
        "from joblib import Parallel, delayed\n"
        "def twice(n): return 2 * lookup(key=n)\n"
        "print(Parallel(n_jobs=2)(delayed(lookup)(n) for n in range(3)))\n"
        "print(Parallel(n_jobs=2)(delayed(twice)(n) for n in range(3)))\n"
        "try: Parallel(n_jobs=2)([delayed(lookup)('bad')])\n"
        "except ToolError as error: print(error, error.kind)\n"
        "from joblib.externals.loky import get_reusable_executor\nget_reusable_executor().shutdown(wait=True)"
    )
    outcome = tool_guest.run(code)
    assert outcome.stdout == "[0, 1, 2]\n[0, 2, 4]\nnot that one error\n", outcome.stderr


def test_idle_connections_that_the_engine_closed_are_replaced(tool_guest: Guest, start_engine: StartEngine) -> None:
    engine = start_engine(echo)
    engine.give(tool_guest, [LOOKUP])
    for code in ("lookup(key=1)", "await lookup(key=1)"):
        for _ in range(2):
            assert tool_guest.run(code).value == "1"
            engine.drop_connections()
    assert len(engine.connections) == 4
    assert len(engine.calls) == 4


def test_files_that_user_code_put_in_the_place_of_our_connections_are_left_alone(
    tool_guest: Guest, start_engine: StartEngine
) -> None:
    start_engine(echo).give(tool_guest, [LOOKUP])
    tool_guest.run("lookup(key=1)")
    code = (
        "import os\nos.closerange(3, 900)\n"
        "files = [os.open('/dev/null', os.O_RDWR) for n in range(50)]\n"
        "print(lookup(key=2), len([os.fstat(n) for n in files]))"
    )
    outcome = tool_guest.run(code)
    assert outcome.stdout == "2 50\n", outcome.stderr


WHOLE = b'{"outcome":"value","more":false}'


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x05",
        PREFIX.pack(6 + len(WHOLE) + 50, 1, ANSWER, len(WHOLE)) + WHOLE + b"half of it",
        PREFIX.pack(6 + len(WHOLE), 1, MORE, len(WHOLE)) + WHOLE,
        PREFIX.pack(6 + len(WHOLE), 9, ANSWER, len(WHOLE)) + WHOLE,
        PREFIX.pack(6, 1, ANSWER, 70_000) + WHOLE,
        PREFIX.pack(6 + 3, 1, ANSWER, 3) + b"{{{",
        (PREFIX.pack(6 + len(WHOLE), 1, ANSWER, len(WHOLE)) + WHOLE) * 2,
    ],
)
def test_an_answer_that_breaks_off_or_makes_no_sense_fails_the_call_and_not_the_next(
    tool_guest: Guest, start_engine: StartEngine, answer: bytes
) -> None:
    engine = start_engine(lambda call: Raw(answer) if call.arguments["key"] == "bad" else call.arguments["key"])
    engine.give(tool_guest, [LOOKUP])
    for bad, good in (("lookup('bad')", "lookup(1)"), ("await lookup('bad')", "await lookup(2)")):
        outcome = tool_guest.run(bad)
        assert outcome.error is not None
        assert outcome.error["name"] == "ToolError", outcome.stderr
        assert tool_guest.run(good).value == good[-2]
    # The second time over a kept connection. A call is made again only if nothing at all of an answer has come.
    assert len([call for call in engine.calls if call.arguments["key"] == "bad"]) == (3 if answer == b"" else 2)


def test_answers_come_in_any_pieces(tool_guest: Guest, start_engine: StartEngine) -> None:
    blob = encode({"text": "x" * 1000})

    def handler(call: Call) -> Any:
        connection = call.connection
        pieces = [blob[start : start + 100] for start in range(0, len(blob), 100)]
        stream = b""
        for number, piece in enumerate([*pieces, b""]):
            header = {"more": number < len(pieces)} | ({"outcome": "value"} if number == 0 else {})
            encoded = json.dumps(header).encode()
            kind = ANSWER if number == 0 else MORE
            stream += PREFIX.pack(6 + len(encoded) + len(piece), 1, kind, len(encoded)) + encoded + piece
        size = call.arguments["key"]
        for start in range(0, len(stream), size):
            connection.line.sendall(stream[start : start + size])
        raise Answered

    class Answered(OSError):
        """Ends the connection's thread."""

    start_engine(handler).give(tool_guest, [LOOKUP])
    for size in (1, 7, 64, 10_000):
        assert tool_guest.run(f"len(lookup({size})['text'])").value == "1000"
        assert tool_guest.run(f"len((await lookup({size}))['text'])").value == "1000"


def test_without_anybody_at_the_socket_a_call_is_a_tool_error(tool_guest: Guest, start_engine: StartEngine) -> None:
    engine = start_engine(echo)
    engine.give(tool_guest, [LOOKUP])
    engine.close()
    for code in ("lookup(1)", "await lookup(1)"):
        outcome = tool_guest.run(code)
        assert outcome.stderr.endswith("ToolError: the engine, which passes calls on to tools, cannot be reached\n")


# Interrupts


@pytest.mark.parametrize(
    "code",
    [
        "lookup('wait')",
        "await lookup('wait')",
        "import asyncio; await asyncio.gather(lookup('wait'), asyncio.sleep(60))",
        "import asyncio\nasync def f(): await lookup('wait')\nasyncio.run(f())",
        "!ramet-tool lookup --key wait",
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, HARD_SIGNAL])
def test_an_interrupt_ends_a_call_that_is_under_way_and_tells_the_engine(
    tool_guest: Guest, start_engine: StartEngine, waiting: Waiting, code: str, number: int
) -> None:
    engine = start_engine(waiting)
    engine.give(tool_guest, [LOOKUP])
    tool_guest.run("lookup(1), lookup(2)")
    tool_guest.start(code)
    waiting.expect()
    outcome = tool_guest.finish_by_signal(number)
    assert (outcome.exit_code, outcome.interrupted) == (130, True)
    assert "ramet_guest" not in outcome.stderr
    # An event loop that was torn apart may hold its connections. The engine does not wait: a call ends with its cell.
    if number != HARD_SIGNAL or "await" not in code:
        assert waiting.given_up.wait(PATIENCE_SECONDS)
    assert tool_guest.run("lookup(3)").value == "3"
    assert tool_guest.run("await lookup(4)").value == "4"


def test_a_cancelled_call_tells_the_engine_and_the_next_one_gets_its_own_answer(
    tool_guest: Guest, start_engine: StartEngine, waiting: Waiting
) -> None:
    start_engine(waiting).give(tool_guest, [LOOKUP])
    code = (
        "import asyncio\nawait lookup(1)\n"
        "try:\n    await asyncio.wait_for(lookup('wait'), 0.05)\nexcept TimeoutError: print('too late')\n"
        "print(await lookup(2))"
    )
    assert tool_guest.run(code).stdout == "too late\n2\n"
    assert waiting.given_up.wait(PATIENCE_SECONDS)


def test_an_exception_out_of_a_signal_handler_is_the_users(
    tool_guest: Guest, start_engine: StartEngine, waiting: Waiting
) -> None:
    start_engine(waiting).give(tool_guest, [LOOKUP])
    code = (
        "import signal\ndef late(*_): raise TimeoutError('mine')\nsignal.signal(signal.SIGALRM, late)\nlookup(1)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "try: lookup('wait')\nexcept Exception as error: print(type(error) is TimeoutError, error)\nlookup(2)"
    )
    outcome = tool_guest.run(code)
    assert (outcome.stdout, outcome.value) == ("True mine\n", "2")
    assert waiting.given_up.wait(PATIENCE_SECONDS)


def test_a_child_that_holds_a_copy_of_a_connection_does_not_hide_that_nobody_waits(
    tool_guest: Guest, start_engine: StartEngine, waiting: Waiting
) -> None:
    start_engine(waiting).give(tool_guest, [LOOKUP])
    code = (
        "import os, time\n"
        "def fork_meanwhile(*_):\n    global child\n    child = os.fork()\n    if child == 0:\n        time.sleep(60)\n"
        "import signal\nsignal.signal(signal.SIGALRM, fork_meanwhile)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "print('begun')\nlookup('wait')"
    )
    tool_guest.start(code)
    waiting.expect()
    tool_guest.wait_for_stdout("begun")
    outcome = tool_guest.finish_by_signal(signal.SIGINT)
    assert outcome.interrupted
    assert waiting.given_up.wait(PATIENCE_SECONDS)
    tool_guest.run("os.kill(child, 9)")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")
def test_a_hard_interrupt_ends_a_loop_that_calls_and_catches_everything(
    tool_guest: Guest, start_engine: StartEngine, waiting: Waiting
) -> None:
    start_engine(waiting).give(tool_guest, [LOOKUP])
    tool_guest.start("while True:\n    try: lookup('wait')\n    except BaseException: pass")
    waiting.expect()
    tool_guest.interrupt()
    assert waiting.given_up.wait(PATIENCE_SECONDS)
    outcome = tool_guest.finish_by_signal(HARD_SIGNAL)
    assert (outcome.exit_code, outcome.interrupted) == (130, True)
    assert tool_guest.run("[lookup(n) for n in range(20)] == list(range(20))").value == "True"


def test_interrupts_at_any_moment_never_mix_answers_up(tool_guest: Guest, start_engine: StartEngine) -> None:
    start_engine(echo).give(tool_guest, [LOOKUP])
    code = "print('begun')\nwhile True:\n    n += 1\n    if lookup(n) != n: print('mixed up')"
    tool_guest.run("n = 0")
    for _ in range(50):
        tool_guest.start(code)
        tool_guest.wait_for_stdout("begun\n")
        assert tool_guest.finish_by_signal(signal.SIGINT).stdout == "begun\n"
    assert tool_guest.run("[lookup(n) for n in range(20)] == list(range(20))").value == "True"
