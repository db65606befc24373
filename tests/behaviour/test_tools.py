"""Code in a sandbox calls functions of the program outside."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet import AsyncSandbox, InvalidArgument, Sandbox, Tool, ToolError, current_tool_call
from tests.behaviour.calling import fetch_sales_data, fetch_slowly, ok, printed, url_of
from tests.behaviour.faces import LoopThread, MakeSandbox
from tests.behaviour.waiting import WAIT_SECONDS, read_until, wait_until

# Calling


@pytest.mark.every_face
def test_a_call_in_plain_code_waits_and_returns_the_value(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data, fetch_slowly])
    assert sandbox.tools == ("fetch_sales_data", "fetch_slowly")
    code = "rows = fetch_sales_data(sku='ABC123'); print(sum(r['units'] for r in rows['days']))"
    assert printed(sandbox, code) == "3"
    assert printed(sandbox, "print(rows['sku'], fetch_slowly(sku='ABC'))") == "ABC123 abc"


def test_arguments_may_come_by_name_in_order_or_as_one_dict(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    code = "print([len(rows['days']) for rows in (f(sku='A', days=3), f('A', 4), f({'sku': 'A', 'days': 5}))])"
    assert printed(sandbox, f"f = fetch_sales_data\n{code}") == "[3, 4, 5]"


def test_a_tool_looks_like_a_function_with_its_signature_and_docstring(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    assert printed(sandbox, "import inspect; print(inspect.signature(fetch_sales_data))") == (
        "(sku: str, days: int = 2) -> dict"
    )
    assert "Retrieve daily sales by product SKU" in printed(sandbox, "help(fetch_sales_data)")


def test_calls_of_an_async_cell_run_at_the_same_time(make_any_sandbox: MakeSandbox) -> None:
    together = threading.Barrier(3)

    def meet(name: str) -> str:
        together.wait(WAIT_SECONDS)
        return name

    sandbox = make_any_sandbox(tools=[meet])
    code = "import asyncio; print(await asyncio.gather(*(meet(name=name) for name in 'abc')))"
    assert printed(sandbox, code) == "['a', 'b', 'c']"


@pytest.mark.every_face
def test_coroutines_of_an_async_cell_run_at_the_same_time(make_any_sandbox: MakeSandbox) -> None:
    met: list[str] = []
    everybody = asyncio.Event()

    async def meet(name: str) -> list[str]:
        met.append(name)
        if len(met) == 3:
            everybody.set()
        async with asyncio.timeout(WAIT_SECONDS):
            await everybody.wait()
        return sorted(met)

    sandbox = make_any_sandbox(tools=[meet])
    code = "import asyncio; print((await asyncio.gather(*(meet(name=name) for name in 'abc')))[0])"
    assert printed(sandbox, code) == "['a', 'b', 'c']"


def test_a_tool_that_was_quick_for_long_and_then_waits_for_another_does_not_hold_it_up(
    make_any_sandbox: MakeSandbox,
) -> None:
    released = threading.Event()

    def step(wait: bool) -> bool:
        return released.wait(WAIT_SECONDS) if wait else False

    def release() -> None:
        released.set()

    sandbox = make_any_sandbox(tools=[step, release])
    code = """
    import threading
    for _ in range(50):
        step(wait=False)
    seen = []
    waiting = threading.Thread(target=lambda: seen.append(step(wait=True)))
    waiting.start()
    release()
    waiting.join()
    print(seen)
    """
    assert printed(sandbox, code) == "[True]"


def test_more_calls_at_once_than_there_are_threads_are_all_answered(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    code = "import asyncio; print(len(await asyncio.gather(*(fetch_sales_data(sku=str(n)) for n in range(200)))))"
    assert printed(sandbox, code) == "200"


def test_a_tool_is_a_command_in_bash(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    assert '"units": 2' in printed(sandbox, "fetch_sales_data --sku ABC123 | head -50", "bash")
    assert '"sku": "Z"' in printed(sandbox, """fetch_sales_data --json '{"sku": "Z"}'""", "bash")
    assert '"sku": "I"' in printed(sandbox, """echo '{"sku": "I"}' | fetch_sales_data""", "bash")
    failed = sandbox.run_code("fetch_sales_data --sku A --days many", "bash")
    assert failed.exit_code != 0
    assert failed.stderr


def test_threads_and_child_processes_call_too(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    code = """
    import multiprocessing
    from concurrent.futures import ThreadPoolExecutor
    def sku(name):
        return fetch_sales_data(sku=name)['sku']
    with ThreadPoolExecutor(4) as threads:
        print(list(threads.map(sku, 'abcd')))
    with multiprocessing.get_context('fork').Pool(2) as children:
        print(children.map(sku, 'efgh'))
    """
    result = ok(sandbox.run_code(code))
    assert result.stdout == "['a', 'b', 'c', 'd']\n['e', 'f', 'g', 'h']\n"
    assert sorted(str(call.arguments and call.arguments["sku"]) for call in result.tool_calls) == list("abcdefgh")


@pytest.mark.every_face
def test_a_streamed_cell_calls_between_what_it_prints(make_any_sandbox: MakeSandbox) -> None:
    asked, answered = threading.Event(), threading.Event()

    def wait() -> str:
        asked.set()
        assert answered.wait(WAIT_SECONDS)
        return "went on"

    sandbox = make_any_sandbox(tools=[wait])
    events = sandbox.run_code_stream("print('before', flush=True); print(wait())")
    read_until(events, "before")
    answered.set()
    read_until(events, "went on")
    *_, last = events
    assert last.type == "exit"
    assert [call.outcome for call in last.result.tool_calls] == ["ok"]
    assert asked.is_set()


def test_handlers_see_the_context_of_whoever_runs_the_cell_and_who_calls() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")

    def who() -> list[str]:
        call = current_tool_call()
        return [tenant.get(), call.sandbox_id, call.tool, call.call_id[:3]]

    async def who_on_loop() -> list[str]:
        return who()

    with Sandbox(tools=[who, who_on_loop]) as sandbox:
        token = tenant.set("anna")
        try:
            result = ok(sandbox.run_code("print(who(), who_on_loop())"))
        finally:
            tenant.reset(token)
        said = [["anna", sandbox.id, name, "tc_"] for name in ("who", "who_on_loop")]
        assert result.stdout.strip() == f"{said[0]} {said[1]}"


async def test_coroutines_run_on_the_loop_of_an_async_sandbox() -> None:
    loop = asyncio.get_running_loop()

    async def here() -> bool:
        return asyncio.get_running_loop() is loop

    async with AsyncSandbox(tools=[here]) as sandbox:
        assert (await sandbox.run_code("print(here())")).stdout == "True\n"


def test_a_function_that_returns_a_coroutine_is_waited_for(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[Tool(lambda sku: fetch_slowly(sku), name="fetch")])
    assert printed(sandbox, "print(fetch(sku='ABC'))") == "abc"


def test_a_tool_with_a_schema_of_its_own(make_any_sandbox: MakeSandbox) -> None:
    asked: list[dict[str, Any]] = []

    def handler(**arguments: Any) -> str:
        asked.append(arguments)
        return "sunny"

    schema = {"type": "object", "properties": {"city": {"type": "string", "minLength": 2}}, "required": ["city"]}
    weather = {"name": "get-weather", "description": "Of a city.", "input_schema": schema, "handler": handler}
    sandbox = make_any_sandbox(tools=[weather])
    assert printed(sandbox, "print(get_weather(city='Bonn'))") == "sunny"
    assert printed(sandbox, "get-weather --city Ulm", "bash") == '"sunny"'
    failed = sandbox.run_code("get_weather(city='X')")
    assert failed.error is not None
    assert failed.error.message == "wrong arguments for get-weather: city: 'X' is too short"
    assert asked == [{"city": "Bonn"}, {"city": "Ulm"}]


# What goes wrong


@pytest.mark.promise("repl-tools")
def test_wrong_arguments_never_reach_the_handler(make_any_sandbox: MakeSandbox) -> None:
    reached: list[object] = []

    def take(count: int, tags: list[str]) -> None:
        reached.append((count, tags))

    sandbox = make_any_sandbox(tools=[take])
    for arguments in ("count='x', tags=[]", "count=1, tags=[2]", "count=1", "count=1, tags=[], more=1", "True, []"):
        result = sandbox.run_code(f"take({arguments})")
        assert result.error is not None
        assert result.error.name in ("ToolError", "TypeError"), arguments
    assert not reached
    records = ok(sandbox.run_code("try: take(count='x', tags=[])\nexcept ToolError as e: print(e.kind)")).tool_calls
    assert [(call.name, call.arguments, call.outcome) for call in records] == [
        ("take", {"count": "x", "tags": []}, "invalid")
    ]


def test_what_json_does_not_have_is_a_type_error_inside_and_no_call(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    result = sandbox.run_code("fetch_sales_data(sku={1: object()})")
    assert result.error is not None
    assert result.error.name == "TypeError"
    assert not result.tool_calls


class OwnError(Exception):
    pass


@pytest.mark.every_face
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ToolError("no such product", hint="not for the code"), "no such product"),
        (OwnError("my words"), "my words"),
        (OwnError(), "OwnError"),
        (FileNotFoundError(2, "No such file or directory", "/home/secret/file"), "No such file or directory"),
        (KeyError("x"), "'x'"),
        (SystemExit(3), "3"),
    ],
    ids=repr,
)
def test_an_exception_arrives_with_its_message_and_nothing_else(
    make_any_sandbox: MakeSandbox, error: BaseException, told: str
) -> None:
    def fail() -> None:
        secret = "of the host"  # noqa: F841
        raise error

    async def fail_on_loop() -> None:
        raise error

    sandbox = make_any_sandbox(tools=[fail, fail_on_loop])
    for call in ("fail()", "fail_on_loop()"):
        result = sandbox.run_code(call)
        assert result.error is not None
        assert (result.error.name, result.error.message) == ("ToolError", told)
        assert result.tool_calls[0].outcome == "error"
        assert "of the host" not in result.stderr
        assert str(Path(__file__).parent) not in result.stderr
        assert "/home/secret" not in result.stderr
        assert "test_tools" not in result.stderr
    assert printed(sandbox, "try: fail()\nexcept ToolError as error: print(error.__cause__, error.tool)") == "None fail"


def test_a_very_long_message_is_cut(make_any_sandbox: MakeSandbox) -> None:
    def fail() -> None:
        raise ValueError("long " * 10_000)

    sandbox = make_any_sandbox(tools=[fail])
    code = "try: fail()\nexcept ToolError as error: print(len(str(error)), str(error)[-10:])"
    assert printed(sandbox, code) == "10000 long l ..."


def test_a_path_that_the_system_puts_into_a_message_stays_outside(make_any_sandbox: MakeSandbox) -> None:
    def read() -> str:
        return (Path(__file__).parent / "there-is-no-such-file").read_text()

    def load() -> None:
        from tests.behaviour.faces import there_is_no_such_name  # type: ignore[attr-defined]  # noqa: F401

    sandbox = make_any_sandbox(tools=[read, load])
    said = sandbox.run_code("read()").stderr + sandbox.run_code("load()").stderr
    assert "No such file or directory" in said
    assert "cannot import name 'there_is_no_such_name'" in said
    assert str(Path(__file__).parent) not in said


def test_a_long_message_of_wide_characters_arrives_too(make_any_sandbox: MakeSandbox) -> None:
    """They take twelve bytes each on their way."""

    def fail() -> None:
        raise ValueError("\N{GRINNING FACE}" * 10_000)

    sandbox = make_any_sandbox(tools=[fail])
    result = sandbox.run_code(
        "try: fail()\nexcept ToolError as error: print(str(error)[0], str(error)[-3:])", timeout=20
    )
    assert ok(result).stdout == "\N{GRINNING FACE} ...\n"


def test_what_cannot_cross_is_an_error_that_says_where(make_any_sandbox: MakeSandbox) -> None:
    with socket.socket() as connection:

        def get() -> dict[str, Any]:
            return {"rows": [0, 1, 2, connection]}

        sandbox = make_any_sandbox(tools=[get])
        result = sandbox.run_code("get()")
    assert result.error is not None
    told = "the tool returned something that cannot cross: result['rows'][3] is a socket"
    assert result.error.message == told
    assert (result.tool_calls[0].outcome, result.tool_calls[0].message) == ("error", told)


def test_a_tool_that_raises_a_timeout_raises_one_inside(make_any_sandbox: MakeSandbox) -> None:
    def ask() -> None:
        raise TimeoutError("nobody answered for 3 days")

    sandbox = make_any_sandbox(tools=[ask])
    result = ok(
        sandbox.run_code("try: ask()\nexcept TimeoutError as error: print(isinstance(error, ToolError), error)")
    )
    assert result.stdout == "True nobody answered for 3 days\n"
    assert result.tool_calls[0].outcome == "timeout"


# Which tools there are


@pytest.mark.every_face
def test_set_tools_replaces_them_and_takes_them_away(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    assert printed(sandbox, "print(fetch_sales_data('A')['sku'])") == "A"
    sandbox.set_tools([fetch_slowly])
    assert sandbox.tools == ("fetch_slowly",)
    assert printed(sandbox, "print(fetch_slowly(sku='B'), 'fetch_sales_data' in globals())") == "b False"
    sandbox.set_tools([])
    assert not sandbox.tools
    assert printed(sandbox, "print('fetch_slowly' in globals())") == "False"


def test_a_tool_that_was_kept_by_the_code_is_not_callable_any_more_once_it_is_taken_away(
    make_any_sandbox: MakeSandbox,
) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    ok(sandbox.run_code("kept = fetch_sales_data"))
    sandbox.set_tools([fetch_slowly])
    result = sandbox.run_code("kept(sku='A')")
    assert result.error is not None
    assert "fetch_sales_data" in result.error.message
    assert [call.outcome for call in result.tool_calls] == ["unknown"]


def test_a_variable_of_the_users_over_a_tool_stays(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    ok(sandbox.run_code("fetch_sales_data = 'mine'"))
    assert printed(sandbox, "print(fetch_sales_data)") == "mine"


def test_a_sandbox_without_tools_is_given_some_later(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox()
    assert sandbox.tools == ()
    ok(sandbox.run_code("x = 'A'"))
    sandbox.set_tools([fetch_sales_data])
    assert printed(sandbox, "print(fetch_sales_data(sku=x)['sku'])") == "A"


def test_whoever_runs_a_cell_without_tools_answers_no_calls(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    other = Sandbox.connect(sandbox.id, url=url_of(sandbox))
    result = other.run_code("fetch_sales_data(sku='A')")
    assert result.error is not None
    assert result.error.message == "the program that runs this cell answers no tool calls"
    assert [call.outcome for call in result.tool_calls] == ["refused"]
    other.set_tools([Tool(lambda sku: {"sku": sku * 2}, name="fetch_sales_data")])
    assert ok(other.run_code("print(fetch_sales_data(sku='A')['sku'])")).stdout == "AA\n"


def test_a_connected_handle_gives_its_own_tools() -> None:
    with Sandbox() as sandbox:
        other = Sandbox.connect(sandbox.id, tools=[fetch_sales_data])
        assert other.tools == ("fetch_sales_data",)
        assert ok(other.run_code("print(fetch_sales_data(sku='A')['sku'])")).stdout == "A\n"


def test_bad_tools_start_nothing(make_any_sandbox: MakeSandbox) -> None:
    def bad(data: bytes) -> None: ...

    with pytest.raises(InvalidArgument, match="'bad' cannot be a tool"):
        make_any_sandbox(tools=[bad])


def test_a_sandbox_that_cannot_be_given_its_tools_is_closed(
    monkeypatch: pytest.MonkeyPatch, loop_thread: LoopThread
) -> None:
    def refuse(sandbox_id: str, tools: bytes) -> Iterator[bytes]:
        raise InvalidArgument("not these")
        yield b""

    monkeypatch.setattr("ramet.client.operations.tool_calls.set_tools", refuse)
    before = {row.id for row in Sandbox.list_all()}
    with pytest.raises(InvalidArgument, match="not these"):
        Sandbox(tools=[fetch_sales_data])
    with pytest.raises(InvalidArgument, match="not these"):
        loop_thread.call(AsyncSandbox.create(tools=[fetch_sales_data]))
    wait_until(lambda: {row.id for row in Sandbox.list_all()} <= before, "both are closed")


# Records


@pytest.mark.every_face
def test_every_call_is_recorded_with_arguments_duration_and_outcome(make_any_sandbox: MakeSandbox) -> None:
    def fail(reason: str) -> None:
        raise ToolError(reason)

    sandbox = make_any_sandbox(tools=[fetch_sales_data, fail])
    code = """
    fetch_sales_data(sku='A', days=1)
    try:
        fail(reason='because')
    except ToolError:
        pass
    fetch_sales_data(sku='x' * 20_000)
    """
    first, second, third = ok(sandbox.run_code(code)).tool_calls
    assert (first.name, first.arguments, first.outcome, first.message) == (
        "fetch_sales_data",
        {"sku": "A", "days": 1},
        "ok",
        None,
    )
    assert (second.name, second.outcome, second.message) == ("fail", "error", "because")
    assert third.arguments is None  # too long to keep
    assert all(call.duration_seconds > 0 for call in (first, second, third))
    assert not ok(sandbox.run_code("1")).tool_calls


def test_more_calls_than_are_kept_are_counted(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(tools=[fetch_sales_data])
    result = ok(sandbox.run_code("for n in range(1005): fetch_sales_data(sku=str(n))"))
    assert len(result.tool_calls) == 1000
    assert result.tool_calls[-1].arguments == {"sku": "999"}
    assert result.tool_calls_dropped == 5
