"""Tools of forks, of snapshots and of handles that come and go."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ramet import AsyncSandbox, Result, Sandbox, current_tool_call
from tests.behaviour.waiting import WAIT_SECONDS, read_until


@pytest.fixture(params=["embedded", "http"])
def url(request: pytest.FixtureRequest) -> str:
    """Of a server, or none."""
    return str(request.getfixturevalue("server_url")) if request.param == "http" else ""


def who(greeting: str = "I am") -> str:
    """Which sandbox calls."""
    return f"{greeting} {current_tool_call().sandbox_id}"


@pytest.fixture
def parent(url: str) -> Iterator[Sandbox]:
    with Sandbox(tools=[who], url=url) as sandbox:
        yield sandbox


def said(sandbox: Sandbox, code: str = "print(who())") -> str:
    result = sandbox.run_code(code)
    assert result.ok, result.stderr
    return result.stdout.strip()


def test_each_fork_calls_as_itself(parent: Sandbox) -> None:
    assert said(parent) == f"I am {parent.id}"
    with parent.fork(3) as children:
        for sandbox in (*children, parent):
            assert sandbox.tools == ("who",)
            assert said(sandbox) == f"I am {sandbox.id}"
        with children[0].fork(1) as grandchildren:
            assert said(grandchildren[0]) == f"I am {grandchildren[0].id}"


def test_forks_call_at_the_same_time(url: str, in_background: Callable[..., Future[Any]]) -> None:
    together = threading.Barrier(4)

    def meet() -> str:
        together.wait(WAIT_SECONDS)
        return who("met as")

    with Sandbox(tools=[meet], url=url) as parent, parent.fork(3) as children:
        sandboxes = (parent, *children)
        running = [in_background(said, sandbox, "print(meet())") for sandbox in sandboxes]
        assert [one.result(WAIT_SECONDS) for one in running] == [f"met as {sandbox.id}" for sandbox in sandboxes]


async def test_forks_of_an_async_sandbox_keep_the_tools(url: str) -> None:
    async def who_on_loop() -> str:
        return who()

    async with AsyncSandbox(tools=[who_on_loop], url=url) as parent:
        async with await parent.fork(2) as children:
            for child in children:
                assert (await child.run_code("print(who_on_loop())")).stdout == f"I am {child.id}\n"


def test_other_tools_of_a_fork_are_its_own(parent: Sandbox) -> None:
    def greet() -> str:
        return "hello"

    with parent.fork(1) as (child,):
        child.set_tools([greet])
        assert said(child, "print(greet(), 'who' in globals())") == "hello False"
        assert said(parent, "print('greet' in globals(), who())") == f"False I am {parent.id}"


def test_a_sandbox_from_a_snapshot_is_given_tools_anew(parent: Sandbox) -> None:
    said(parent, "x = 1")
    with parent.snapshot() as snapshot:
        with Sandbox(snapshot, tools=[who]) as other:
            assert said(other, "print(x, who())") == f"1 I am {other.id}"
        with Sandbox(snapshot) as bare:
            assert bare.tools == ()
            result = bare.run_code("who()")
            assert not result.ok
            assert "I am" not in result.stdout


def test_restore_and_merge_keep_the_tools(parent: Sandbox) -> None:
    with parent.snapshot() as before:
        said(parent, "x = 1")
        parent.restore(before)
        assert said(parent, "print('x' in globals(), who())") == f"False I am {parent.id}"
    with parent.fork(2) as children:
        said(children[1], "winner = True")
        parent.merge_into(children[1])
        assert said(parent, "print(winner, who())") == f"True I am {parent.id}"


def test_a_repl_that_died_has_its_tools_again(parent: Sandbox) -> None:
    assert parent.run_code("import os; os._exit(3)").state == "lost"
    assert said(parent) == f"I am {parent.id}"


def test_a_handler_may_use_its_sandbox_and_others(url: str) -> None:
    def save(text: str) -> int:
        sandbox.files.write("/root/saved", text)
        with Sandbox(tools=[who], url=url) as other:
            return len(said(other))

    with Sandbox(tools=[save], url=url) as sandbox:
        assert int(said(sandbox, "print(save(text='by a tool'))")) > 10
        assert sandbox.files.read("/root/saved") == b"by a tool"


WAITS: dict[str, Callable[[Sandbox], object]] = {
    "run_code": lambda sandbox: sandbox.run_code("1"),
    "run_code_stream": lambda sandbox: list(sandbox.run_code_stream("1")),
    "fork": lambda sandbox: sandbox.fork(1),
    "snapshot": lambda sandbox: sandbox.snapshot(),
    "diff": lambda sandbox: sandbox.diff(sandbox),
}


def test_a_handler_cannot_wait_for_the_end_of_the_cell_that_waits_for_it(url: str) -> None:
    def ask(what: str) -> None:
        WAITS[what](sandbox)

    with Sandbox(tools=[ask], url=url) as sandbox:
        for what in WAITS:
            result = sandbox.run_code(f"ask(what={what!r})", timeout=20)
            assert result.error is not None
            assert "the cell that called it still runs" in result.error.message, what


async def test_a_coroutine_cannot_either_but_leaves_it_to_another_task(url: str) -> None:
    later: list[asyncio.Task[Result]] = []

    async def ask(wait: bool) -> None:
        if wait:
            await sandbox.run_code("1")
        later.append(asyncio.create_task(sandbox.run_code("print('later')")))
        await asyncio.sleep(0)

    async with AsyncSandbox(tools=[ask], url=url) as sandbox:
        result = await sandbox.run_code("ask(wait=True)", timeout=20)
        assert "the cell that called it still runs" in result.stderr
        assert (await sandbox.run_code("ask(wait=False)", timeout=20)).ok
        assert (await later[0]).stdout == "later\n"


def test_a_handler_may_close_the_sandbox_that_called(url: str) -> None:
    def stop() -> None:
        sandbox.close()

    sandbox = Sandbox(tools=[stop], url=url)
    with pytest.raises(Exception, match=sandbox.id):
        sandbox.run_code("stop()")
    with pytest.raises(Exception, match="closed"):
        sandbox.run_code("1")


HANGING = """
import sys, threading
from ramet import Sandbox, Tool

def hang():
    threading.Event().wait()

async def hang_on_loop():
    threading.Event().wait()

with Sandbox(tools=[Tool(hang, timeout_seconds=0.05), Tool(hang_on_loop, timeout_seconds=0.05)]) as sandbox:
    for call in ("hang()", "hang_on_loop()"):
        assert sandbox.run_code(call).tool_calls[0].outcome == "timeout"
print("done")
"""


def test_a_tool_that_hangs_keeps_no_program_alive() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


# Whoever runs the cell gives it up


async def test_a_task_that_is_cancelled_cancels_the_coroutines_that_answer(url: str) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with AsyncSandbox(tools=[wait], url=url) as sandbox:
        async with asyncio.timeout(WAIT_SECONDS):
            running = asyncio.create_task(sandbox.run_code("wait()"))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await cancelled.wait()
            assert (await sandbox.run_code("print('goes on')")).stdout == "goes on\n"


def test_a_stream_that_is_closed_early_cancels_them_too(url: str) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    until_begun = {"name": "until_begun", "handler": lambda: begun.wait(WAIT_SECONDS)}
    with Sandbox(tools=[wait, until_begun], url=url) as sandbox:
        code = """
        import threading
        threading.Thread(target=wait, daemon=True).start()
        until_begun()
        print('begun', flush=True)
        threading.Event().wait()
        """
        events = sandbox.run_code_stream(code)
        read_until(events, "begun")
        events.close()
        assert cancelled.wait(WAIT_SECONDS)
        assert said(sandbox, "print('goes on')") == "goes on"


@pytest.mark.deep("load")
def test_an_interrupt_is_noticed_though_it_did_not_wake_the_thread_that_waits(url: str) -> None:
    """Python handles signals in the main thread, and only when that runs: a signal that came just before it went to
    sleep, or to another thread, does not wake it."""
    begun = threading.Event()

    def interrupt() -> None:
        assert begun.wait(WAIT_SECONDS)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()

    def begin() -> None:
        begun.set()

    with Sandbox(tools=[begin], url=url) as sandbox:
        with pytest.raises(KeyboardInterrupt):
            sandbox.run_code("begin(); import time; time.sleep(15); open('/root/ended', 'w').close()")
        thread.join()
        assert not sandbox.files.exists("/root/ended")
        assert said(sandbox, "print('goes on')") == "goes on"


def test_an_interrupt_of_the_program_itself_ends_the_cell_and_not_the_sandbox(url: str) -> None:
    released = threading.Event()
    main = threading.main_thread().ident
    assert main == threading.get_ident()

    def interrupt() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        released.wait(WAIT_SECONDS)

    with Sandbox(tools=[interrupt], url=url) as sandbox:
        try:
            with pytest.raises(KeyboardInterrupt):
                sandbox.run_code("interrupt()")
        finally:
            released.set()
        assert said(sandbox, "print('goes on')") == "goes on"
