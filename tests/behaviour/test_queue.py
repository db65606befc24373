"""One cell at a time: calls from threads and tasks queue in order of arrival, and a waiting one can be given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from ramet import AsyncSandbox, ExecutionCancelled, InvalidArgument, Result, Sandbox, SandboxClosed
from tests.behaviour.faces import AnySandbox
from tests.behaviour.waiting import UNTIL_GO, go, wait_until_running


@pytest.mark.promise("repl-queue")
@pytest.mark.every_face
def test_concurrent_calls_run_one_at_a_time_in_order_of_arrival(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]]
) -> None:
    any_sandbox.run_code("order = []")
    calls: list[Future[Result]] = [in_background(any_sandbox.run_code, UNTIL_GO)]
    for number in range(8):
        wait_until_running(any_sandbox, waiting=number)
        calls.append(in_background(any_sandbox.run_code, f"order.append({number})\nprint({number})"))
    wait_until_running(any_sandbox, waiting=8)
    go(any_sandbox)
    assert [call.result(60).stdout for call in calls] == ["begun\n", *(f"{number}\n" for number in range(8))]
    assert any_sandbox.run_code("order").value == str(list(range(8)))


@pytest.mark.every_face
def test_many_threads_get_each_their_own_result(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]]
) -> None:
    calls = [in_background(any_sandbox.run_code, f"print({number})\n{number}") for number in range(100)]
    for number, call in enumerate(calls):
        result = call.result(60)
        assert (result.stdout, result.value) == (f"{number}\n", str(number))


def test_the_timeout_of_a_cell_counts_from_its_start_not_from_its_arrival(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]]
) -> None:
    first = in_background(any_sandbox.run_code, UNTIL_GO)
    wait_until_running(any_sandbox)
    second = in_background(any_sandbox.run_code, "'whole'", timeout=0.5)
    wait_until_running(any_sandbox, waiting=1)
    # Time is the subject: the second waits for longer than it may run, and then runs in much less.
    time.sleep(0.6)
    go(any_sandbox)
    waited = second.result(60)
    assert (waited.value, waited.interrupted) == ("'whole'", False)
    assert first.result(60).ok


def test_a_task_that_is_cancelled_in_the_queue_drops_its_cell() -> None:
    async def session() -> None:
        async with AsyncSandbox() as sandbox:
            running = asyncio.create_task(sandbox.run_code(UNTIL_GO))
            await until(sandbox, 0)
            waiting = asyncio.create_task(sandbox.run_code("open('/root/never', 'w')"))
            await until(sandbox, 1)
            last = asyncio.create_task(sandbox.run_code("'last'"))
            await until(sandbox, 2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(sandbox, 1)
            await sandbox.files.write("/root/go", b"")
            assert (await running).ok
            assert (await last).value == "'last'"
            assert not await sandbox.files.exists("/root/never")

    asyncio.run(session())


def test_a_task_that_is_cancelled_while_its_cell_runs_interrupts_it() -> None:
    async def session() -> None:
        async with AsyncSandbox() as sandbox:
            await sandbox.run_code("kept = 1")
            running = asyncio.create_task(sandbox.run_code("while True: pass"))
            await until(sandbox, 0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            after = await sandbox.run_code("kept")
            assert (after.value, after.restarted) == ("1", False)

    asyncio.run(session())


def test_asyncio_timeout_around_a_call_interrupts_the_cell() -> None:
    async def session() -> None:
        async with AsyncSandbox() as sandbox:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await sandbox.run_code("import time\ntime.sleep(600)")
            assert (await sandbox.run_code("'free'")).value == "'free'"

    asyncio.run(session())


@pytest.mark.promise("repl-interrupts")
def test_an_interrupt_ends_the_running_cell_only_and_the_waiting_one_has_its_turn(
    sandbox: Sandbox, in_background: Callable[..., Future[Any]]
) -> None:
    running = in_background(sandbox.run_code, "while True: pass")
    wait_until_running(sandbox)
    waiting = in_background(sandbox.run_code, "'my turn'")
    wait_until_running(sandbox, waiting=1)
    assert sandbox.interrupt()
    assert running.result(60).interrupted
    after = waiting.result(60)
    assert (after.value, after.interrupted) == ("'my turn'", False)


def test_a_death_does_not_lose_the_cells_that_wait(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]]
) -> None:
    first = in_background(any_sandbox.run_code, UNTIL_GO + "os._exit(3)")
    wait_until_running(any_sandbox)
    second = in_background(any_sandbox.run_code, "'second'")
    wait_until_running(any_sandbox, waiting=1)
    third = in_background(any_sandbox.run_code, "'third'")
    wait_until_running(any_sandbox, waiting=2)
    go(any_sandbox)
    assert first.result(60).state == "lost"
    assert (second.result(60).value, second.result().restarted) == ("'second'", True)
    assert (third.result(60).value, third.result().restarted) == ("'third'", False)


@pytest.mark.every_face
def test_closing_a_sandbox_cancels_cells_that_run_and_wait(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]]
) -> None:
    calls = [in_background(any_sandbox.run_code, "while True: pass")]
    wait_until_running(any_sandbox)
    calls.append(in_background(any_sandbox.run_code, "1"))
    wait_until_running(any_sandbox, waiting=1)
    any_sandbox.close()
    for call in calls:
        with pytest.raises((ExecutionCancelled, SandboxClosed)):
            call.result(60)


def test_hundreds_of_tasks_can_wait_for_one_sandbox() -> None:
    async def session() -> None:
        async with AsyncSandbox() as sandbox:
            running = asyncio.create_task(sandbox.run_code(UNTIL_GO))
            await until(sandbox, 0)
            waiting = [asyncio.create_task(sandbox.run_code("1")) for _ in range(300)]
            await until(sandbox, 300)
            await sandbox.files.write("/root/go", b"")
            assert all([(await call).ok for call in [running, *waiting]])

    asyncio.run(session())


async def until(sandbox: AsyncSandbox, waiting: int) -> None:
    async with asyncio.timeout(60):
        while True:
            info = await sandbox.info()
            if info.state == "running" and info.waiting == waiting:
                return
            await asyncio.sleep(0.005)


def test_sandboxes_run_cells_at_the_same_time(in_background: Callable[..., Future[Any]]) -> None:
    with Sandbox() as one, Sandbox() as other:
        running = in_background(one.run_code, UNTIL_GO)
        wait_until_running(one)
        assert other.run_code("'not held up'").ok
        go(one)
        assert running.result(60).ok


def test_threads_can_make_sandboxes_at_the_same_time(in_background: Callable[..., Future[Any]]) -> None:
    def session(number: int) -> str | None:
        with Sandbox() as sandbox:
            sandbox.run_code(f"x = {number}")
            return sandbox.run_code("x").value

    calls = [in_background(session, number) for number in range(24)]
    assert [call.result(60) for call in calls] == [str(number) for number in range(24)]


async def test_calls_of_one_handle_at_the_same_moment_run_in_the_order_they_were_made(server_url: str) -> None:
    """Over HTTP each has a connection of its own, and any of them may be there first."""
    async with AsyncSandbox(url=server_url) as sandbox:
        await sandbox.run_code("order = []")
        for _ in range(3):
            await sandbox.run_code("order.clear()")
            await asyncio.gather(*(sandbox.run_code(f"order.append({number})") for number in range(50)))
            assert await sandbox.get("order") == list(range(50))


def test_calls_of_one_handle_do_not_wait_for_one_that_was_refused(server_url: str) -> None:
    """A cell that never reached the engine is not waited for by those behind it for longer than a moment."""
    with Sandbox(url=server_url) as sandbox:
        with pytest.raises(InvalidArgument):
            sandbox.run_code("1", language="ruby")  # type: ignore[arg-type]
        assert sandbox.run_code("1").value == "1"
