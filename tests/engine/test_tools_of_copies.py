"""Tools of sandboxes that were forked, thawed, restored or merged: each copy calls as itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet.protocol import calls
from ramet.protocol.values.specs import ThawSpec
from tests.engine.conftest import Connect
from tests.engine.frames_client import Line, create
from tests.engine.tools_inside import INSIDE, answer, begin, give, next_call, run, tool

ECHOED = "b'{\"n\": 1}'\n"

# A connection that was used, one at which a thread waits for what nobody will send, and half a call.
CONNECTIONS = """
tools, told = Tools(), []
tools.call('echo')
def wait():
    mine = Tools()
    started.set()
    told.append(mine.ended())
started = threading.Event()
thread = threading.Thread(target=wait, daemon=True)
thread.start()
started.wait()
half = Tools()
half.socket.send(packed(1, {"tool": "echo", "accepts": []}, b'{"n": 2}')[:20])
def waited():
    thread.join(20)
    return told
"""

# Threads that call without end, whatever comes of it.
RESTLESS = """
import collections
said, stop = collections.Counter(), threading.Event()
def restless():
    tools = None
    while not stop.is_set():
        try:
            if tools is None:
                tools = Tools()
            answer = tools.call('echo', n=1)
            said[answer if isinstance(answer, str) else 'answered'] += 1
        except (OSError, EOFError) as error:
            said[type(error).__name__] += 1
            if tools is not None:
                tools.socket.close()
            tools = None
            time.sleep(0.001)
threads = [threading.Thread(target=restless) for _ in range(4)]
[thread.start() for thread in threads]
def stopped():
    stop.set()
    [thread.join(20) for thread in threads]
    return sum(thread.is_alive() for thread in threads)
"""


@pytest.fixture
def answers(connect: Connect) -> Line:
    return connect()


@pytest.fixture
def sandbox(line: Line, answers: Line) -> str:
    sandbox = create(line)
    give(line, sandbox, tool("echo"))
    run(line, answers, sandbox, INSIDE)
    return sandbox


def fork(line: Line, sandbox: str, count: int = 1) -> list[str]:
    answer = line.ask(calls.FORK, sandbox=sandbox, count=count, reseed=False)
    return [child["id"] for child in answer["children"]]


def test_connections_are_closed_in_a_child_and_go_on_in_its_parent(line: Line, answers: Line, sandbox: str) -> None:
    run(line, answers, sandbox, CONNECTIONS)
    (child,) = fork(line, sandbox)
    code = "print(tools.ended(), half.ended(), waited()); print(Tools().call('echo', n=1))"
    assert run(line, answers, child, code) == "True True [True]\n" + ECHOED
    # The rest of the half call.
    finish = "half.socket.send(packed(1, {'tool': 'echo', 'accepts': []}, b'{\"n\": 2}')[20:])"
    code = f"{finish}; print(told, tools.call('echo', n=1), half.answer()[1])"
    assert run(line, answers, sandbox, code) == "[] b'{\"n\": 1}' b'{\"n\": 2}'\n"


def test_children_call_as_themselves_at_the_same_time(connect: Connect, line: Line, sandbox: str) -> None:
    everybody = [sandbox, *fork(line, sandbox, 3)]
    code = "tools = Tools(); print({tools.call('echo', of=%r) for _ in range(30)})"
    links = [(connect(), connect(), one) for one in everybody]

    def calling(caller: Line, answerer: Line, one: str) -> str:
        return run(caller, answerer, one, code % one)

    with ThreadPoolExecutor(len(links)) as pool:
        printed = list(pool.map(calling, *zip(*links, strict=True)))
    assert printed == [f'{{b\'{{"of": "{one}"}}\'}}\n' for one in everybody]


def test_a_call_of_one_copy_cannot_be_answered_as_that_of_another(line: Line, answers: Line, sandbox: str) -> None:
    (child,) = fork(line, sandbox)
    begin(line, child, "print(Tools().call('echo'))")
    call = next_call(line).header["call"]
    assert answer(answers, sandbox, call, b"") is False
    assert answer(answers, child, call, b"") is True
    assert line.frame().kind == calls.RESULT


def test_threads_that_call_without_end_are_forked_and_go_on(line: Line, answers: Line, sandbox: str) -> None:
    run(line, answers, sandbox, RESTLESS)
    children = [fork(line, sandbox)[0] for _ in range(3)]
    for one in (sandbox, *children):
        code = "before = said['answered']\nwhile said['answered'] < before + 20: time.sleep(0.001)"
        run(line, answers, one, code)
        assert run(line, answers, one, "print(stopped())") == "0\n"
        code = "print(set(said) - {'answered', 'ConnectionResetError', 'ConnectionRefusedError', 'EOFError', "
        code += "'BrokenPipeError', 'refused: no cell is running: a tool can be called only while one is', "
        code += "'cancelled: the cell that made this call has ended'})"
        assert run(line, answers, one, code) == "set()\n"


def test_a_thawed_snapshot_has_the_tools_of_its_state(line: Line, answers: Line, sandbox: str) -> None:
    run(line, answers, sandbox, CONNECTIONS)
    snapshot = line.ask(calls.SNAPSHOT, sandbox=sandbox)["id"]
    give(line, sandbox, tool("later"))
    line.send_frame(calls.THAW, ThawSpec(snapshot, None).header())
    thawed = str(line.frames()[-1].header["id"])
    assert run(line, answers, thawed, "print(waited()); print(Tools().call('echo', n=1))") == "[True]\n" + ECHOED
    # Whoever runs a cell there without answering is said to do so.
    nobody = run(line, answers, thawed, "print(Tools().call('echo'))", tools=False)
    assert nobody == "refused: the program that runs this cell answers no tool calls\n"


def test_a_restored_sandbox_keeps_its_own_tools(line: Line, answers: Line, sandbox: str) -> None:
    snapshot = line.ask(calls.SNAPSHOT, sandbox=sandbox)["id"]
    give(line, sandbox, tool("later"))
    run(line, answers, sandbox, "tools = Tools(); tools.call('later')")
    line.ask(calls.RESTORE, sandbox=sandbox, snapshot=snapshot)
    assert run(line, answers, sandbox, "print(Tools().call('later', n=1))") == ECHOED
    assert run(line, answers, sandbox, "print(Tools().call('echo', n=1))").startswith("unknown: ")


def test_a_merged_sandbox_keeps_its_own_tools(line: Line, answers: Line, sandbox: str) -> None:
    (child,) = fork(line, sandbox)
    give(line, child, tool("of_the_child"))
    run(line, answers, child, "tools = Tools(); tools.call('of_the_child'); state = 'the child'")
    line.ask(calls.MERGE, sandbox=sandbox, winner=child)
    code = "print(state, tools.ended()); print(Tools().call('echo', n=1))"
    assert run(line, answers, sandbox, code) == "the child True\n" + ECHOED
    assert run(line, answers, sandbox, "print(Tools().call('of_the_child', n=1))").startswith("unknown: ")


def test_a_chain_of_forks_calls_at_every_depth(line: Line, answers: Line, sandbox: str) -> None:
    one = sandbox
    for _ in range(5):
        assert run(line, answers, one, "tools = Tools(); print(tools.call('echo', n=1))") == ECHOED
        (one,) = fork(line, one)
    assert run(line, answers, one, "print(tools.ended()); print(Tools().call('echo', n=1))") == "True\n" + ECHOED


def test_tools_may_be_given_while_the_sandbox_is_frozen(connect: Connect, line: Line, answers: Line) -> None:
    for _ in range(5):
        sandbox = create(line)
        forking, giving = connect(), connect()
        forking.send(calls.FORK, sandbox=sandbox, count=2, reseed=False)
        give(giving, sandbox, tool("echo"))
        assert len(forking.frames()[-1].header["children"]) == 2  # type: ignore[arg-type]
        assert run(line, answers, sandbox, INSIDE + "print(Tools().call('echo', n=1))") == ECHOED


def test_a_persistent_sandbox_that_is_resumed_has_its_tools(line: Line, answers: Line) -> None:
    sandbox = create(line, persistent=True)
    give(line, sandbox, tool("echo"))
    run(line, answers, sandbox, INSIDE + "tools = Tools(); tools.call('echo')")
    line.ask(calls.CLOSE, sandbox=sandbox)
    resumed = line.ask(calls.RESUME, space=sandbox, lifetime=None, persistent=False)["id"]
    code = "print(tools.ended()); print(Tools().call('echo', n=1))"
    assert run(line, answers, resumed, code) == "True\n" + ECHOED


def test_what_the_guest_keeps_for_tools_is_no_difference(line: Line, answers: Line) -> None:
    sandbox = create(line)
    (child,) = fork(line, sandbox)
    give(line, child, tool("echo"))
    run(line, answers, child, "open('/tmp/made-by-the-cell', 'w').close()")
    line.send(calls.DIFF, sandbox=sandbox, other=child, paths=None)
    changes = [change for frame in line.frames()[:-1] for change in frame.header["files"]]  # type: ignore[attr-defined]
    assert [change["path"] for change in changes] == ["/tmp/made-by-the-cell"]
