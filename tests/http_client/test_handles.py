"""Handles of sandboxes at a real server: made, connected to, forgotten, used in a child, cut off in the middle."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ramet import (
    AsyncSandbox,
    ExecutionUnknown,
    InvalidArgument,
    OutcomeUnknown,
    Sandbox,
    SandboxClosed,
    Template,
    Unauthorized,
)
from tests.behaviour.waiting import UNTIL_GO, go, read_until, wait_until, wait_until_running
from tests.http_client.cutting import Cutter
from tests.server.running import Server, running_server

WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(autouse=True)
def at_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_URL", server.url)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def cutter(server: Server) -> Iterator[Cutter]:
    cutter = Cutter(server.port)
    yield cutter
    cutter.close()


def is_gone(sandbox_id: str) -> bool:
    try:
        Sandbox.connect(sandbox_id)
    except SandboxClosed:
        return True
    return False


def run(code: str, **environment: str) -> str:
    """A program of its own, and what it printed."""
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_SECONDS, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_a_handle_by_id_is_the_same_sandbox(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 41")
    other = Sandbox.connect(sandbox.id)
    assert other.run_code("x + 1").value == "42"
    assert other.id == sandbox.id
    other.files.write("/root/f", b"seen")
    assert sandbox.files.read("/root/f") == b"seen"


def test_an_asynchronous_handle_by_id_is_the_same_sandbox(sandbox: Sandbox) -> None:
    async def ask() -> str | None:
        other = await AsyncSandbox.connect(sandbox.id)
        return (await other.run_code("x + 1")).value

    sandbox.run_code("x = 41")
    assert asyncio.run(ask()) == "42"
    assert sandbox.run_code("x").value == "41"


@pytest.mark.parametrize("wrong", ["", "x" * 200, 5, "ä"])
def test_a_wrong_id_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument):
        Sandbox.connect(wrong)  # type: ignore[arg-type]


def test_an_unknown_id_is_closed_for_us() -> None:
    with pytest.raises(SandboxClosed):
        Sandbox.connect("sbx_nobody")
    with pytest.raises(SandboxClosed):
        asyncio.run(AsyncSandbox.connect("sbx_nobody"))


def test_a_connected_handle_may_be_forgotten(sandbox: Sandbox) -> None:
    other = Sandbox.connect(sandbox.id)
    del other
    gc.collect()
    assert sandbox.run_code("1").value == "1"


def test_a_handle_that_made_its_sandbox_warns_and_closes_it() -> None:
    sandbox = Sandbox()
    sandbox_id = sandbox.id
    with pytest.warns(ResourceWarning, match=sandbox_id):
        del sandbox
    wait_until(lambda: is_gone(sandbox_id), "the sandbox is closed")


def test_a_forgotten_async_sandbox_warns_and_is_closed() -> None:
    async def forget() -> str:
        sandbox = await AsyncSandbox.create()
        sandbox_id = sandbox.id
        del sandbox
        gc.collect()
        return sandbox_id

    ids: list[str] = []
    with pytest.warns(ResourceWarning, match="AsyncSandbox"):
        ids.append(asyncio.run(forget()))
    (sandbox_id,) = ids
    wait_until(lambda: is_gone(sandbox_id), "the sandbox is closed")


def test_a_sandbox_outlives_the_program_that_made_it() -> None:
    """Another may know its id; it ends with its lifetime."""
    sandbox_id = run("from ramet import Sandbox; s = Sandbox(); s.run_code('x = 41'); print(s.id)").strip()
    with Sandbox.connect(sandbox_id) as sandbox:
        assert sandbox.run_code("x + 1").value == "42"
    assert is_gone(sandbox_id)


def test_a_sandbox_that_its_program_forgot_is_closed_before_the_program_ends() -> None:
    sandbox_id = run("""if True:
        import warnings
        from ramet import Sandbox
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(Sandbox().id)
    """).strip()
    assert is_gone(sandbox_id)


def test_a_forked_child_may_use_a_handle_and_does_not_close_it(sandbox: Sandbox) -> None:
    said = run(f"""if True:
        import os, sys
        from ramet import Sandbox
        s = Sandbox.connect({sandbox.id!r})
        made = Sandbox()
        made.run_code("x = 1")
        s.run_code("x = 41")
        child = os.fork()
        if child == 0:
            print("child", s.run_code("x + 1").value, made.run_code("x").value, flush=True)
            sys.exit(0)
        os.waitpid(child, 0)
        print("parent", s.run_code("x").value, made.run_code("x").value)
        made.close()
    """)
    assert said.split("\n")[:-1] == ["child 42 1", "parent 41 1"]


def test_a_url_may_be_given_instead_of_the_variable(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_URL")
    with Sandbox(url=server.url) as sandbox:
        assert sandbox.run_code("6 * 7").value == "42"


def test_a_wrong_key_is_unauthorized_and_not_shown(server: Server) -> None:
    server.create_key("not-this-one")
    with pytest.raises(Unauthorized) as refused:
        Sandbox(api_key="rmt_wrong-key")
    assert "wrong-key" not in str(refused.value) + repr(refused.value)


def test_keys_have_sandboxes_of_their_own(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = server.create_key("first"), server.create_key("second")
    with Sandbox(api_key=first) as sandbox, Sandbox(api_key=second) as other:
        with pytest.raises(SandboxClosed):
            Sandbox.connect(sandbox.id, api_key=second)
        with pytest.raises(SandboxClosed):
            sandbox.diff(other)
        monkeypatch.setenv("RAMET_API_KEY", first)
        Sandbox.connect(sandbox.id)


def test_sandboxes_of_two_places_are_not_related(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_URL")
    with Sandbox() as embedded:
        for one, other in ((sandbox, embedded), (embedded, sandbox)):
            with pytest.raises(InvalidArgument, match="belongs to another one"):
                one.diff(other)


def test_forks_merges_and_snapshots_work_as_embedded(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    with sandbox.snapshot() as snapshot, sandbox.fork(2) as children:
        children[0].run_code("x = 2")
        children[1].run_code("x = 3")
        assert [change.name for change in sandbox.diff(children[0]).names] == ["x"]
        sandbox.merge_into(children[1])
        assert sandbox.run_code("x").value == "3"
        sandbox.restore(snapshot)
        assert sandbox.run_code("x").value == "1"
        with Sandbox(snapshot) as thawed:
            assert thawed.run_code("x").value == "1"
        snapshot.save_as("of-the-server")
        with pytest.raises(InvalidArgument):
            snapshot.save_as("of-the-server")
    with Sandbox("of-the-server") as saved:
        assert saved.run_code("x").value == "1"
    # Also for a program that did not save it.
    assert run("from ramet import Sandbox\nwith Sandbox('of-the-server') as s: print(s.run_code('x').value)") == "1\n"


def test_an_unknown_template_is_refused_by_the_server() -> None:
    with pytest.raises(InvalidArgument) as refused:
        Sandbox("nobody-saved-this")
    assert refused.value.argument == "template"


def test_a_template_of_ones_own_works_at_the_server() -> None:
    with Sandbox(Template("with-colorsys", preload=["colorsys"])) as sandbox:
        assert sandbox.run_code("import sys; 'colorsys' in sys.modules").value == "True"


def test_a_lifetime_is_told_and_can_be_extended() -> None:
    with Sandbox(timeout_seconds=100, idle_timeout_seconds=50) as sandbox:
        before = sandbox.info()
        assert before.expires_ms is not None
        assert before.idle_expires_ms is not None
        sandbox.extend(timeout_seconds=1000)
        after = sandbox.info()
        assert after.expires_ms is not None
        assert after.expires_ms > before.expires_ms + 800_000
        with pytest.raises(InvalidArgument):
            sandbox.extend()
        with pytest.raises(InvalidArgument):
            sandbox.extend(timeout_seconds=-1)


def test_a_sandbox_whose_time_is_over_says_why() -> None:
    sandbox = Sandbox(timeout_seconds=0.2)
    end = time.monotonic() + WAIT_SECONDS
    closed: SandboxClosed | None = None
    while closed is None:
        assert time.monotonic() < end
        try:
            sandbox.info()
        except SandboxClosed as error:
            closed = error
    assert closed.details["cause"] == "timeout"
    sandbox.close()


def test_a_replay_tells_what_was_printed(sandbox: Sandbox) -> None:
    sandbox.run_code("print('first'); import sys; print('second', file=sys.stderr)")
    sandbox.run_code("exit(3)")
    events = sandbox.replay()
    assert "".join(event.data for event in events if event.type == "stdout") == "first\n"
    assert "".join(event.data for event in events if event.type == "stderr") == "second\n"
    assert [event.code for event in events if event.type == "exit"] == [0, 3]
    assert all(event.execution.startswith("exe_") for event in events)
    assert len({event.execution for event in events}) == 2


def cut_when_it_runs(sandbox: Sandbox, cutter: Cutter) -> None:
    wait_until_running(sandbox)
    cutter.cut()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_cell_whose_connection_broke_goes_on_and_its_result_can_be_had(
    sandbox: Sandbox, cutter: Cutter, streamed: bool, in_thread: Callable[..., object]
) -> None:
    far = Sandbox.connect(sandbox.id, url=cutter.url)
    code = UNTIL_GO + "print('ended')\n42"
    if streamed:
        events = far.run_code_stream(code)
        read_until(events, "begun")
        cutter.cut()
    else:
        in_thread(lambda: cut_when_it_runs(sandbox, cutter))
    with pytest.raises(OutcomeUnknown) as unknown:
        next(events) if streamed else far.run_code(code)
    execution = str(unknown.value.details["execution"])
    assert execution in str(unknown.value)
    assert sandbox.result(execution, wait=False) is None
    go(sandbox)
    result = sandbox.result(execution)
    assert (result.stdout, result.value, result.state) == ("begun\nended\n", "42", "kept")
    assert sandbox.result(execution, wait=False) == result


def test_a_cell_may_ask_to_end_with_its_connection(
    sandbox: Sandbox, cutter: Cutter, in_thread: Callable[..., object]
) -> None:
    far = Sandbox.connect(sandbox.id, url=cutter.url)
    in_thread(lambda: cut_when_it_runs(sandbox, cutter))
    with pytest.raises(OutcomeUnknown) as unknown:
        far.run_code(UNTIL_GO, on_disconnect="interrupt")
    result = sandbox.result(str(unknown.value.details["execution"]))
    assert result.interrupted
    assert result.cause == "interrupt"


def test_an_unknown_execution_is_told(sandbox: Sandbox) -> None:
    with pytest.raises(ExecutionUnknown):
        sandbox.result("exe_" + "0" * 32)
    with pytest.raises(InvalidArgument):
        sandbox.result("no id\n")
    with pytest.raises(InvalidArgument) as refused:
        sandbox.run_code("1", on_disconnect="explode")  # type: ignore[arg-type]
    assert refused.value.argument == "on_disconnect"


@pytest.mark.deep("load")
def test_one_client_has_five_hundred_cells_at_once() -> None:
    async def crowd() -> list[str | None]:
        async with AsyncSandbox() as sandbox:
            results = await asyncio.gather(*(sandbox.run_code(f"{number} * 2") for number in range(500)))
            return [result.value for result in results]

    assert asyncio.run(crowd()) == [str(number * 2) for number in range(500)]
