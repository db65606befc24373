"""The tool socket is the engine's, and any process of the sandbox may write to it: that harms nobody but itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from ramet import Sandbox
from ramet.protocol import calls
from tests.behaviour.memory import Peaks, engine_pid
from tests.engine.frames_client import Line, create, until
from tests.engine.tools_inside import (
    INSIDE,
    answer,
    begin,
    exists,
    give,
    next_call,
    records,
    run,
    send_parts,
    tool,
)

Check = Callable[[], None]
MIB = 1024 * 1024

ATTACKS = """
import array, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
def connected(blocking=False):
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.setblocking(blocking)
    try:
        raw.connect("\\0ramet-tools")
    except BlockingIOError:
        raw.close()
        return None
    return raw
def pushed(raw, data):
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[raw.send(rest):]
    except BlockingIOError:
        pass
    except OSError:
        return -1
    return len(data) - len(rest)
"""


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    made = [Line(), Line()]
    yield made
    for line in made:
        line.close()


@pytest.fixture
def line(lines: list[Line]) -> Line:
    return lines[0]


@pytest.fixture
def answers(lines: list[Line]) -> Line:
    return lines[1]


@pytest.fixture
def attacked(line: Line, answers: Line) -> Iterator[str]:
    """A sandbox with a tool and the means for attacks, which can still make a call in the end."""
    sandbox = create(line)
    give(line, sandbox, tool("echo"))
    run(line, answers, sandbox, INSIDE + ATTACKS)
    yield sandbox
    last = Line()
    last.ask(calls.CLOSE, sandbox=sandbox)
    last.close()


def still_calls(line: Line, answers: Line, sandbox: str) -> None:
    assert run(line, answers, sandbox, "print(Tools().call('echo', n=1))") == "b'{\"n\": 1}'\n"


def engine_sockets() -> set[str]:
    """The numbers of all sockets that the engine holds."""
    folder, found = f"/proc/{engine_pid()}/fd", set()
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"{folder}/{name}"))
    return {target[8:-1] for target in found if target.startswith("socket:[")}


def links(line: Line, sandbox: str) -> int:
    """How many connections to the sandbox's tool socket the engine has accepted; with the socket itself."""
    code = "print(*(row.split()[6] for row in open('/proc/net/unix') if '@ramet-tools' in row))"
    begin(line, sandbox, code, tools=False)
    return len(engine_sockets() & set(calls.read_result(line.frame()).stdout.split()))


def test_a_flood_of_connections_is_bounded(
    line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    code = """
held, end = [], time.monotonic() + 1.0
while len(held) < 800 and time.monotonic() < end:
    try:
        raw = connected()
    except OSError:
        # An ordinary user's sandbox has fewer descriptors, and cells need some. The engine has dropped the oldest ones.
        del held[:50]
        break
    if raw is None:
        time.sleep(0.001)
    else:
        held.append(raw)
print(len(held) > 64)
"""
    assert run(line, answers, attacked, code) == "True\n"
    until(lambda: links(line, attacked) == 65)
    neighbour_still_answers()
    still_calls(line, answers, attacked)
    run(line, answers, attacked, "[raw.close() for raw in held]")
    neighbour_still_answers()


def test_connections_in_the_middle_of_a_call_are_bounded_too(
    line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    """They are not idle, so none makes room for another: the sandbox has no more calls until it closes some.

    -1: it was still idle when another one connected, and made room.
    """
    code = """
held = [raw for raw in (connected() for _ in range(128)) if raw is not None]
print(len(held) >= 64, {pushed(raw, packed(1, {"tool": "echo"}, b"{}")[:9]) for raw in held} - {-1})
"""
    assert run(line, answers, attacked, code) == "True {9}\n"
    neighbour_still_answers()
    until(lambda: links(line, attacked) == 65)
    run(line, answers, attacked, "[raw.close() for raw in held]")
    still_calls(line, answers, attacked)


def test_a_flood_of_calls_between_cells_delays_nobody_for_long(
    line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    code = """
stop = threading.Event()
def flood():
    tools = Tools()
    while not stop.is_set():
        tools.call('echo', text='x' * 1000)
threads = [threading.Thread(target=flood) for _ in range(8)]
[thread.start() for thread in threads]
"""
    begin(line, attacked, code, tools=False)
    assert line.frame().kind == calls.RESULT
    for _ in range(3):
        neighbour_still_answers()
    begin(line, attacked, "stop.set(); [thread.join() for thread in threads]", tools=False)
    assert line.frame().kind == calls.RESULT
    neighbour_still_answers()
    still_calls(line, answers, attacked)


def test_calls_by_the_hundred_in_one_piece_delay_nobody_for_long(
    line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    code = """
burst = packed(1, {"tool": "x"}, b"") * 180
def flood():
    while True:
        held = [raw for raw in (connected() for _ in range(60)) if raw is not None]
        alive = True
        while alive and held:
            for raw in held:
                alive = pushed(raw, burst) >= 0 and alive
                try:
                    alive = raw.recv(1 << 20) != b"" and alive
                except BlockingIOError:
                    pass
                except OSError:
                    alive = False
        [raw.close() for raw in held]
import os
flooding = os.fork()
if not flooding:
    flood()
"""
    begin(line, attacked, code, tools=False)
    assert line.frame().kind == calls.RESULT
    for _ in range(20):
        neighbour_still_answers()
    begin(line, attacked, "os.kill(flooding, 9); os.waitpid(flooding, 0)", tools=False)
    assert line.frame().kind == calls.RESULT
    neighbour_still_answers()
    still_calls(line, answers, attacked)


@pytest.mark.deep("restarts")
def test_huge_calls_to_a_client_that_does_not_read_take_little_of_the_engine(
    line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    """64 at a time, of 16 MiB each."""
    line.narrow()
    peaks = Peaks()
    code = """
frame = packed(1, {"tool": "echo"}, bytes(16 * 1024 * 1024))
held = [raw for raw in (connected() for _ in range(64)) if raw is not None]
sent = [0] * len(held)
end = time.monotonic() + 2.0
while time.monotonic() < end:
    for index, raw in enumerate(held):
        more = pushed(raw, frame[sent[index]:sent[index] + (1 << 20)])
        sent[index] += max(more, 0)
    time.sleep(0.001)
print(sum(sent) < 200 * 1024 * 1024, file=open('/tmp/told', 'w'), flush=True)
[raw.close() for raw in held]
"""
    begin(line, attacked, code)
    until(lambda: exists(answers, attacked, "/tmp/told"))
    neighbour_still_answers()
    assert peaks.growth_bytes()["engine"] < 150 * MIB
    while line.frame().kind != calls.RESULT:
        pass
    assert run(line, answers, attacked, "print(open('/tmp/told').read())") == "True\n\n"
    still_calls(line, answers, attacked)


def test_records_of_endless_calls_are_bounded(
    line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    code = """
tools = Tools()
for number in range(3000):
    tools.call(f"unknown{number}" + "x" * 4000, text="\\x01" * 2000)
"""
    begin(line, attacked, code)
    frame = line.frame()
    result = calls.read_result(frame)
    assert (len(result.tool_calls), result.tool_calls_dropped) == (1000, 2000)
    assert {row[2] for row in records(frame)} == {"unknown"}
    assert len(frame.blob) < 20 * MIB
    neighbour_still_answers()


@pytest.mark.parametrize(
    "frame",
    [
        "packed(2, {'outcome': 'value', 'more': False, 'call': CALL}, b'forged')",
        "packed(68, {'call': CALL, 'outcome': 'value', 'more': False, 'sandbox': 'sbx'}, b'forged')",
        "packed(3, {'more': False}, b'forged')",
        "packed(4, {'id': 1, 'exit_code': 0, 'error': None, 'interrupted': False})",
        "packed(1, {'tool': 'echo'}, b'{}', version=9)",
        "packed(1, b'[' * 8000)",
        'packed(1, b\'{"tool": "\\xff"}\')',
        "packed(1, {'tool': ['echo']})",
        "packed(1, {'tool': 'echo', 'accepts': {}})",
        "struct.pack('<IBBI', 0xffffffff, 1, 1, 2) + b'{}'",
        "struct.pack('<IBBI', 8, 1, 1, 100) + b'{}'",
        "struct.pack('<IBBI', 0, 1, 1, 0)",
        "b'GET / HTTP/1.1\\r\\n\\r\\n'",
    ],
)
def test_what_is_no_call_ends_the_connection_and_answers_nothing(
    frame: str, line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    """Not even the call of another thread, whose id it knows."""
    code = """
waiting, bad, said = Tools(), Tools(), []
thread = threading.Thread(target=lambda: said.append(waiting.call('echo')))
thread.start()
while not os.path.exists('/tmp/call'):
    time.sleep(0.001)
CALL = open('/tmp/call').read()
bad.socket.sendall(FRAME)
print(bad.ended(), said)
open('/tmp/sent', 'w').close()
thread.join()
print(said)
"""
    begin(line, attacked, code.replace("FRAME", frame))
    call = str(next_call(line).header["call"])
    answers.ask(calls.WRITE, call.encode(), sandbox=attacked, path="/tmp/call.new", more=False)
    answers.ask(calls.RENAME, sandbox=attacked, path="/tmp/call.new", new_path="/tmp/call")
    until(lambda: exists(answers, attacked, "/tmp/sent"))
    assert answer(answers, attacked, call, b"true") is True
    assert calls.read_result(line.frame()).stdout == "True []\n[b'true']\n"
    neighbour_still_answers()


def test_the_id_of_a_call_is_the_engines(line: Line, answers: Line, attacked: str) -> None:
    header = {"tool": "echo", "call": "tc_mine", "sandbox": "sbx_other"}
    begin(line, attacked, f"tools = Tools(); tools.socket.sendall(packed(1, {header}, b'{{}}')); tools.answer()")
    call = next_call(line)
    assert set(call.header) == {"call", "tool", "accepts"}
    assert call.header["call"] != "tc_mine"
    assert answer(answers, attacked, "tc_mine", b"") is False
    assert answer(answers, attacked, call.header["call"], b"") is True
    line.frames()


def test_code_that_never_reads_a_large_value_holds_up_only_its_own_answer(
    line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    code = """
slow, quick = Tools(), Tools()
slow.send('echo', who='slow')
print(quick.call('echo', who='quick'))
while not os.path.exists('/tmp/go'):
    time.sleep(0.001)
"""
    begin(line, attacked, code)
    first, second = next_call(line), next_call(line)
    slow, quick = (first, second) if b"slow" in first.blob else (second, first)
    peaks = Peaks()
    stuck = Line()
    # As much as goes in: this blocks us, not the engine.
    accepted = send_parts(stuck, attacked, slow.header["call"], 200 * MIB)
    assert accepted < 30 * MIB
    assert answer(answers, attacked, quick.header["call"], b"quick") is True
    neighbour_still_answers()
    assert peaks.growth_bytes()["engine"] < 50 * MIB
    answers.ask(calls.WRITE, sandbox=attacked, path="/tmp/go", more=False)
    frame = line.frame()
    assert sorted(row[2] for row in records(frame)) == ["cancelled", "ok"]
    stuck.close()
    neighbour_still_answers()
    still_calls(line, answers, attacked)


def test_descriptors_sent_along_are_not_taken(
    line: Line, answers: Line, attacked: str, neighbour_still_answers: Check
) -> None:
    code = """
tools = Tools()
read, write = os.pipe()
for _ in range(20):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [write] * 50))]
    tools.socket.sendmsg([packed(1, {"tool": "nothing"}, b"{}")], rights)
    tools.answer()
os.close(write)
print(os.read(read, 1))
"""
    assert run(line, answers, attacked, code) == "b''\n"  # every copy is closed
    neighbour_still_answers()


def test_the_tool_socket_is_not_there_for_other_sandboxes(line: Line, answers: Line, attacked: str) -> None:
    code = """
import socket
found = [line for line in open('/proc/net/unix') if 'ramet' in line]
raw = socket.socket(socket.AF_UNIX)
try:
    raw.connect("\\0ramet-tools")
except OSError as error:
    print(type(error).__name__, found)
"""
    with Sandbox() as other:
        assert other.run_code(code).stdout == "ConnectionRefusedError []\n"
    child = line.ask(calls.FORK, sandbox=attacked, count=1, reseed=False)["children"][0]["id"]
    assert run(line, answers, child, "print(Tools().call('echo', n=1))") == "b'{\"n\": 1}'\n"
    line.ask(calls.CLOSE, sandbox=child)


def test_names_that_are_taken_again_and_again_are_no_obstacle(line: Line, answers: Line) -> None:
    sandbox = create(line)
    code = "import socket\nheld = [socket.socket(socket.AF_UNIX) for _ in range(2)]\nheld[0].bind('\\0ramet-tools')"
    run(line, answers, sandbox, code)
    give(line, sandbox, tool("echo"))
    code = "name, = [l.split('@')[1].strip() for l in open('/proc/net/unix') if '@ramet-tools-' in l]\n"
    assert run(line, answers, sandbox, INSIDE + code + "print(Tools(name).call('echo', n=1))") == "b'{\"n\": 1}'\n"
    line.ask(calls.CLOSE, sandbox=sandbox)


def test_nothing_is_left_of_a_tool_socket(line: Line, answers: Line, neighbour_still_answers: Check) -> None:
    for _ in range(5):
        sandbox = create(line)
        give(line, sandbox, tool("echo"))
        code = "held = [Tools() for _ in range(20)]; [tools.call('echo') for tools in held]\n"
        code += "print(*(row.split()[6] for row in open('/proc/net/unix') if '@ramet-tools' in row))"
        sockets = set(run(line, answers, sandbox, INSIDE + code).split())
        assert len(engine_sockets() & sockets) == 21
        line.ask(calls.CLOSE, sandbox=sandbox)
        assert not engine_sockets() & sockets
    neighbour_still_answers()
