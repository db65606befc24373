"""Tools of real sandboxes: calls of code in a cell reach the client that runs it, and its answers reach the code."""

from __future__ import annotations

from hashlib import sha256

import pytest

from ramet.protocol import calls
from ramet.protocol.frames import Frame
from tests.engine.conftest import Connect
from tests.engine.frames_client import Line, create, until
from tests.engine.tools_inside import (
    INSIDE,
    answer,
    begin,
    exists,
    give,
    next_call,
    records,
    refuse,
    run,
    send_value,
    tool,
)

MIB = 1024 * 1024


@pytest.fixture
def answers(connect: Connect) -> Line:
    """The link over which calls are answered."""
    return connect()


@pytest.fixture
def sandbox(line: Line) -> str:
    """One with a tool, and a client of the tool socket inside."""
    sandbox = create(line)
    give(line, sandbox, tool("echo"), tool("slow", timeout_seconds=0.05))
    assert calls.read_result(begun(line, sandbox, INSIDE)).stderr == ""
    return sandbox


def begun(line: Line, sandbox: str, code: str) -> Frame:
    begin(line, sandbox, code)
    return line.frame()


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_reaches_the_client_and_its_answer_the_code(
    line: Line, answers: Line, sandbox: str, stream: bool
) -> None:
    begin(line, sandbox, "print('before'); print(Tools().call('echo', word='ramet'))", stream)
    if stream:
        assert line.frame().blob == b"before\n"  # what was printed before the call is seen before it
    call = line.frame()
    assert call.kind == calls.TOOL_CALL
    assert (call.header["tool"], call.header["accepts"], call.blob) == ("echo", ["npy"], b'{"word": "ramet"}')
    assert answer(answers, sandbox, call.header["call"], b"a clone") is True
    frames = line.frames()
    assert b"".join(frame.blob for frame in frames).startswith((b"b'a clone'\n", b"before\nb'a clone'\n"))
    assert records(frames[-1]) == [("echo", {"word": "ramet"}, "ok", None)]


def test_a_failure_reaches_the_code(line: Line, answers: Line, sandbox: str) -> None:
    begin(line, sandbox, "print(Tools().call('echo'))")
    assert refuse(answers, sandbox, next_call(line).header["call"], "not today") is True
    assert calls.read_result(line.frame()).stdout == "error: not today\n"


def test_threads_and_processes_call_at_the_same_time(line: Line, answers: Line, sandbox: str) -> None:
    code = """
import multiprocessing, concurrent.futures
def ask(n):
    tools = Tools()
    return [int(json.loads(tools.call('echo', n=n + i))["n"]) for i in range(20)]
wanted = [[n + i for i in range(20)] for n in range(8)]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(list(pool.map(ask, range(8))) == wanted)
with multiprocessing.get_context('fork').Pool(4) as pool:
    print(pool.map(ask, range(8)) == wanted)
"""
    assert run(line, answers, sandbox, code) == "True\nTrue\n"


def test_a_program_in_another_language_can_call(line: Line, answers: Line, sandbox: str) -> None:
    code = "cat > /tmp/t.py <<'END'\n" + INSIDE + "print(Tools().call('echo', n=1))\nEND\npython3 /tmp/t.py"
    assert run(line, answers, sandbox, code, language="bash") == "b'{\"n\": 1}'\n"


def test_large_arguments_and_large_values_arrive_whole(line: Line, answers: Line, sandbox: str) -> None:
    code = """
import hashlib
value = Tools().call('echo', blob=bytes(range(256)) * (1 << 15))
print(len(value), hashlib.sha256(value).hexdigest()[:8])
"""
    begin(line, sandbox, code)
    call = next_call(line)
    assert call.blob == bytes(range(256)) * (1 << 15)
    assert send_value(answers, sandbox, call.header["call"], call.blob * 4) is True
    frame = line.frame()
    assert calls.read_result(frame).stdout == f"33554432 {sha256(call.blob * 4).hexdigest()[:8]}\n"
    assert records(frame) == [("echo", None, "ok", None)]  # too long to keep


def test_a_tool_has_its_time(line: Line, answers: Line, sandbox: str) -> None:
    begin(line, sandbox, "print(Tools().call('slow'))")
    call = next_call(line).header["call"]
    assert (line.frame().kind, line.frame().kind) == (calls.TOOL_CANCELLED, calls.RESULT)
    assert answer(answers, sandbox, call, b"") is False


def test_code_that_is_interrupted_takes_its_call_back(line: Line, answers: Line, sandbox: str) -> None:
    begin(line, sandbox, "tools = Tools()\ntry:\n    tools.call('echo')\nfinally:\n    tools.socket.close()")
    call = next_call(line).header["call"]
    assert answers.ask(calls.INTERRUPT, sandbox=sandbox) == {"interrupted": True}
    cancelled = line.frame()
    assert (cancelled.kind, cancelled.header["call"]) == (calls.TOOL_CANCELLED, call)
    result = line.frame()
    assert (result.header["interrupted"], records(result)[0][2]) == (True, "cancelled")


def test_a_call_ends_with_the_process_that_made_it(line: Line, answers: Line, sandbox: str) -> None:
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {INSIDE!r} + "Tools().call('echo')"])
tools = Tools()
tools.call('echo', n='second')
child.kill()
child.wait()
tools.call('echo', n='third')
"""
    begin(line, sandbox, code)
    first, second = sorted((next_call(line), next_call(line)), key=lambda call: len(call.blob))
    answer(answers, sandbox, second.header["call"], b"")
    frames = [line.frame(), line.frame()]
    assert {frame.kind for frame in frames} == {calls.TOOL_CANCELLED, calls.TOOL_CALL}
    for frame in frames:
        if frame.kind == calls.TOOL_CALL:
            answer(answers, sandbox, frame.header["call"], b"")
        else:
            assert frame.header["call"] == first.header["call"]
    assert [row[2] for row in records(line.frame())] == ["ok", "cancelled", "ok"]


def test_calls_end_with_a_cell_that_has_ended_without_them(line: Line, answers: Line, sandbox: str) -> None:
    begin(line, sandbox, LATE)
    call = next_call(line).header["call"]
    answers.ask(calls.WRITE, sandbox=sandbox, path="/tmp/go", more=False)
    assert [line.frame().kind, line.frame().kind] == [calls.TOOL_CANCELLED, calls.RESULT]
    assert answer(answers, sandbox, call, b"late") is False
    until(lambda: exists(answers, sandbox, "/tmp/said"))
    assert run(line, answers, sandbox, "thread.join(); print(said)") == (
        "['cancelled: the cell that made this call has ended', "
        "'refused: no cell is running: a tool can be called only while one is']\n"
    )


# A thread whose call outlives its cell, and that calls again at once.
LATE = """
said = []
def late():
    tools = Tools()
    said.append(tools.call('echo'))
    said.append(tools.call('echo'))
    open('/tmp/said', 'w').close()
thread = threading.Thread(target=late)
thread.start()
while not os.path.exists('/tmp/go'):
    time.sleep(0.005)
"""


def test_a_cell_that_is_killed_ends_its_calls_and_the_next_repl_can_call(
    line: Line, answers: Line, sandbox: str
) -> None:
    begin(line, sandbox, "threading.Timer(0.1, os._exit, [3]).start(); Tools().call('echo')")
    next_call(line)
    assert line.frame().kind == calls.TOOL_CANCELLED
    result = line.frame()
    assert (result.header["state"], records(result)[0][2]) == ("lost", "cancelled")
    begin(line, sandbox, "pass")
    assert "fresh Python" in calls.read_result(line.frame()).stderr
    assert run(line, answers, sandbox, INSIDE + "print(Tools().call('echo', n=1))") == "b'{\"n\": 1}'\n"


def test_closing_a_sandbox_ends_its_calls(connect: Connect, line: Line, answers: Line, sandbox: str) -> None:
    begin(line, sandbox, "Tools().call('echo')")
    call = next_call(line).header["call"]
    answers.ask(calls.CLOSE, sandbox=sandbox)
    assert line.frame().kind == calls.ERROR
    assert answer(answers, sandbox, call, b"") is False


def test_a_kept_cell_goes_on_without_its_client_and_its_calls_fail(
    connect: Connect, line: Line, answers: Line, sandbox: str
) -> None:
    caller, execution = connect(), "exe_" + "a" * 32
    code = "t = Tools(); print(t.call('echo')); print(t.call('echo'))"
    begin(caller, sandbox, code, execution=execution, on_disconnect="keep")
    next_call(caller)
    caller.close()
    answers.send(calls.FETCH, sandbox=sandbox, execution=execution, wait=True)
    frame = answers.frame()
    assert calls.read_result(frame).stdout == "gone: the program that answers tool calls has gone away\n" * 2
    assert [row[2] for row in records(frame)] == ["gone", "gone"]


def test_the_usual_name_may_be_taken_in_the_sandbox(line: Line, answers: Line) -> None:
    sandbox = create(line)
    taken = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0ramet-tools'); s.listen()"
    run(line, answers, sandbox, taken)
    give(line, sandbox, tool("echo"))
    code = INSIDE + (
        "names = [l.split('@')[1].strip() for l in open('/proc/net/unix') if '@ramet-tools-' in l]\n"
        "print(len(names), Tools(names[0]).call('echo', n=1))"
    )
    assert run(line, answers, sandbox, code) == "1 b'{\"n\": 1}'\n"


def test_a_sandbox_without_tools_has_no_socket(line: Line, answers: Line) -> None:
    code = INSIDE + "try:\n    Tools()\nexcept ConnectionRefusedError:\n    print('none')"
    assert run(line, answers, create(line), code) == "none\n"


def test_more_processes_than_connections_all_get_their_turn(line: Line, answers: Line, sandbox: str) -> None:
    code = """
def ask(n):
    tools = Tools()
    held.append(tools)
    said.append(tools.call('echo', n=n))
held, said = [], []
threads = [threading.Thread(target=ask, args=(n,)) for n in range(150)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(said), len(set(said)))
"""
    assert run(line, answers, sandbox, code) == "150 150\n"
