"""A thread or task that has not read a stream to its end, and asks for what would wait for the stream's cell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest

from ramet import AsyncSandbox, InvalidArgument, Sandbox

# More than all buffers on the way hold: the cell waits until somebody reads.
MUCH = "for i in range(20_000): print('x' * 1000)"
WAITS: list[Callable[[Sandbox], object]] = [
    lambda sandbox: sandbox.run_code("1"),
    lambda sandbox: next(sandbox.run_code_stream("1")),
    lambda sandbox: sandbox.fork(),
    lambda sandbox: sandbox.snapshot(),
]
AWAITS: list[Callable[[AsyncSandbox], Awaitable[object]]] = [
    lambda sandbox: sandbox.run_code("1"),
    lambda sandbox: anext(sandbox.run_code_stream("1")),
    lambda sandbox: sandbox.fork(),
    lambda sandbox: sandbox.snapshot(),
]
REFUSAL = "^this {} has an unread stream of sandbox sbx_"


def fail_while_reading(sandbox: Sandbox) -> None:
    for event in sandbox.run_code_stream(MUCH):
        assert event.type == "stdout"
        raise ZeroDivisionError


@pytest.mark.deep("load")
@pytest.mark.parametrize("code", [MUCH, "print(1)"])
def test_what_waits_for_the_cell_is_refused_in_the_thread_that_reads_its_stream(sandbox: Sandbox, code: str) -> None:
    stream = sandbox.run_code_stream(code)
    next(stream)
    for ask in WAITS:
        with pytest.raises(InvalidArgument, match=REFUSAL.format("thread")) as refused:
            ask(sandbox)
        assert refused.value.hint is not None
        assert "read the stream to its end, or close it" in refused.value.hint
    # What does not wait for the cell is as before.
    assert sandbox.info().id == sandbox.id
    sandbox.files.write("/root/file", b"x")
    sandbox.set_tools([])
    assert sum(event.type == "exit" for event in stream) == 1
    assert sandbox.run_code("2").value == "2"


def test_a_loop_over_a_stream_may_use_other_sandboxes_and_is_refused_its_own(sandbox: Sandbox) -> None:
    with Sandbox() as other:
        for _ in zip(sandbox.run_code_stream(MUCH), range(3), strict=False):
            assert other.run_code("1").value == "1"
            with pytest.raises(InvalidArgument):
                sandbox.run_code("1")
    assert sandbox.run_code("2").value == "2"


def test_a_stream_that_was_closed_given_up_or_read_to_its_exit_is_in_nobodys_way(sandbox: Sandbox) -> None:
    closed = sandbox.run_code_stream(MUCH)
    next(closed)
    closed.close()
    assert sandbox.run_code("1").value == "1"
    for _ in sandbox.run_code_stream(MUCH):
        break
    assert sandbox.run_code("2").value == "2"
    unbegun = sandbox.run_code_stream("3")
    assert sandbox.run_code("4").value == "4"
    while next(unbegun).type != "exit":
        pass
    assert sandbox.run_code("5").value == "5"
    with pytest.raises(ZeroDivisionError):
        fail_while_reading(sandbox)
    assert sandbox.run_code("6").value == "6"


def test_other_threads_wait_for_their_turn(sandbox: Sandbox) -> None:
    stream = sandbox.run_code_stream(MUCH)
    next(stream)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sandbox.run_code, "6 * 7")
        assert list(stream)[-1].type == "exit"
        assert waiting.result(60).value == "42"


def test_the_thread_that_reads_on_is_the_one_that_is_refused(sandbox: Sandbox) -> None:
    stream = sandbox.run_code_stream(MUCH)
    next(stream)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(next, stream).result(60)
        with pytest.raises(InvalidArgument):
            threads.submit(sandbox.run_code, "1").result(60)
        reading = threads.submit(list, stream)
        assert sandbox.run_code("1").value == "1"
        reading.result(60)


@pytest.mark.deep("load")
@pytest.mark.parametrize("code", [MUCH, "print(1)"])
async def test_what_waits_for_the_cell_is_refused_in_the_task_that_reads_its_stream(code: str) -> None:
    async with AsyncSandbox() as sandbox:
        stream = sandbox.run_code_stream(code)
        await anext(stream)
        for ask in AWAITS:
            with pytest.raises(InvalidArgument, match=REFUSAL.format("task")):
                await ask(sandbox)
        assert (await sandbox.info()).id == sandbox.id
        async for _ in stream:
            pass
        assert (await sandbox.run_code("2")).value == "2"


async def test_an_asynchronous_stream_that_was_left_is_in_nobodys_way() -> None:
    async with AsyncSandbox() as sandbox:
        async for _ in sandbox.run_code_stream(MUCH):
            break  # asyncio closes it later, in a task of its own
        assert (await sandbox.run_code("1")).value == "1"
        async with aclosing(sandbox.run_code_stream(MUCH)) as stream:
            await anext(stream)
        assert (await sandbox.run_code("2")).value == "2"


async def test_other_tasks_wait_for_their_turn() -> None:
    async with AsyncSandbox() as sandbox:
        stream = sandbox.run_code_stream(MUCH)
        await anext(stream)
        waiting = asyncio.create_task(sandbox.run_code("6 * 7"))
        async for _ in stream:
            pass
        async with asyncio.timeout(60):
            assert (await waiting).value == "42"
