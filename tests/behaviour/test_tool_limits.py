"""How calls of tools end early: limits, timeouts, interrupts, and the end of their cell."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ramet import Result, Sandbox, Tool
from tests.behaviour.calling import InBackground, fetch_sales_data, ok, printed
from tests.behaviour.faces import MakeSandbox
from tests.behaviour.waiting import WAIT_SECONDS, wait_until


def test_a_tool_may_be_called_so_often_in_a_cell(make_any_sandbox: MakeSandbox) -> None:
    calls: list[int] = []
    sandbox = make_any_sandbox(tools=[Tool(lambda: calls.append(1), name="count", calls_per_cell=2)])
    result = sandbox.run_code("count(); count(); count()")
    assert result.error is not None
    assert result.error.message == "tool count was called 2 times in this cell, which is its limit"
    assert [call.outcome for call in result.tool_calls] == ["ok", "ok", "refused"]
    ok(sandbox.run_code("count()"))
    assert len(calls) == 3


@pytest.mark.every_face
def test_a_tool_that_takes_too_long_times_out_inside_and_a_coroutine_is_cancelled(
    make_any_sandbox: MakeSandbox,
) -> None:
    begun, cancelled, released = threading.Event(), threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def wait_in_a_thread() -> None:
        released.wait(WAIT_SECONDS)

    tools = [Tool(function, timeout_seconds=0.05) for function in (wait_for_ever, wait_in_a_thread)]
    sandbox = make_any_sandbox(tools=tools)
    code = """
    for tool in (wait_for_ever, wait_in_a_thread):
        try:
            tool()
        except TimeoutError as error:
            print(isinstance(error, ToolError), error.kind)
    """
    try:
        # On a busy machine the time may be over before the coroutine takes its first step: nothing to cancel then.
        for _ in range(50):
            result = ok(sandbox.run_code(code))
            assert result.stdout == "True timeout\nTrue timeout\n"
            assert [call.outcome for call in result.tool_calls] == ["timeout", "timeout"]
            if begun.is_set():
                break
        assert cancelled.wait(WAIT_SECONDS)
    finally:
        released.set()


def test_a_tool_that_was_quick_and_then_hangs_does_not_keep_a_caller_who_waits_only_so_long(
    make_any_sandbox: MakeSandbox,
) -> None:
    released, over = threading.Event(), threading.Event()

    def step(hang: bool) -> None:
        if hang:
            released.wait(WAIT_SECONDS)
            over.set()

    sandbox = make_any_sandbox(tools=[step])
    try:
        result = sandbox.run_code("for _ in range(20): step(hang=False)\nstep(hang=True)", timeout=0.5)
        assert not over.is_set()
        assert result.tool_calls[-1].outcome == "cancelled"
    finally:
        released.set()


def test_a_tool_has_no_loop_in_its_way_wherever_the_cell_is_run_from() -> None:
    async def wait() -> int:
        return 7

    def ask() -> int:
        return asyncio.run(wait())

    async def run() -> Result:
        with Sandbox(tools=[ask]) as sandbox:
            return sandbox.run_code("print({ask() for _ in range(10)})")

    assert ok(asyncio.run(run())).stdout == "{7}\n"


@pytest.mark.every_face
def test_an_interrupt_ends_a_cell_that_waits_for_a_tool_and_cancels_the_call(
    make_any_sandbox: MakeSandbox, in_background: InBackground
) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    sandbox = make_any_sandbox(tools=[wait_for_ever, fetch_sales_data])
    running = in_background(sandbox.run_code, "wait_for_ever()")
    assert begun.wait(WAIT_SECONDS)
    assert sandbox.interrupt()
    result = running.result(WAIT_SECONDS)
    assert result.interrupted
    assert result.state == "kept"
    assert cancelled.wait(WAIT_SECONDS)
    assert [call.outcome for call in result.tool_calls] == ["cancelled"]
    assert printed(sandbox, "print(fetch_sales_data(sku='A')['sku'])") == "A"


@pytest.mark.every_face
def test_a_cell_that_ends_does_not_wait_for_the_calls_of_its_threads(make_any_sandbox: MakeSandbox) -> None:
    begun, released = threading.Event(), threading.Event()

    def wait() -> str:
        begun.set()
        released.wait(WAIT_SECONDS)
        return "too late"

    sandbox = make_any_sandbox(tools=[wait, Tool(lambda: begun.wait(WAIT_SECONDS), name="until_begun")])
    code = """
    import threading
    said = []
    def call():
        try:
            said.append(wait())
        except ToolError as error:
            said.append(str(error))
    thread = threading.Thread(target=call)
    thread.start()
    print(until_begun())
    """
    try:
        assert ok(sandbox.run_code(code)).stdout == "True\n"
        result = ok(sandbox.run_code("thread.join(); print(said)"))
        assert result.stdout == "['the cell that made this call has ended']\n"
    finally:
        released.set()


def test_between_cells_nobody_answers(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    code = """
    import os, threading, time
    def call():
        while not os.path.exists('/root/go'):
            time.sleep(0.005)
        try:
            said = fetch_sales_data(sku='A')
        except ToolError as error:
            said = error
        with open('/root/said.part', 'w') as file:
            file.write(str(said))
        os.rename('/root/said.part', '/root/said')
    threading.Thread(target=call).start()
    """
    ok(sandbox.run_code(code))
    sandbox.files.write("/root/go", b"")
    wait_until(lambda: sandbox.files.exists("/root/said"), "the thread has called")
    told = b"no cell is running: a tool can be called only while one is"
    assert sandbox.files.read("/root/said") == told
