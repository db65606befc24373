"""Tools among the names of a cell: ordinary functions that come, stay and go."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.guest.guest_driver import PATIENCE_SECONDS, Guest
from tests.guest.tool_engine import Call, Failure, Handler, ToolEngine, tool

ASK_NAMES, NAMES, THAWED, CONFIGURED = 5, 6, 3, 2
SALES = tool(
    "fetch_sales_data",
    "Retrieve daily sales by product SKU",
    {"sku": {"type": "string"}, "days": {"type": "integer"}},
    ["sku"],
    parameters=[
        {"name": "sku", "required": True, "annotation": "str"},
        {"name": "days", "required": False, "default": 3, "annotation": "int | None"},
    ],
    returns="dict",
)


def echo(call: Call) -> Any:
    return [call.tool, call.arguments]


@pytest.fixture
def engine(start_engine: Callable[[Handler], ToolEngine]) -> ToolEngine:
    return start_engine(echo)


def names(guest: Guest) -> set[str]:
    guest.send(ASK_NAMES, {"seconds": 10.0})
    kind, _, blob = guest._frame(time.monotonic() + PATIENCE_SECONDS)
    assert kind == NAMES
    return {row[0] for row in map(json.loads, blob.splitlines())}


def value(guest: Guest, code: str) -> Any:
    """What an expression is, as JSON."""
    outcome = guest.run(f"import json as json_; print(json_.dumps({code}))")
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_a_tool_is_an_ordinary_function_with_signature_docstring_and_help(
    tool_guest: Guest, engine: ToolEngine
) -> None:
    engine.give(tool_guest, [SALES])
    outcome = tool_guest.run("help(fetch_sales_data)")
    assert "fetch_sales_data(sku: str, days: int | None = 3) -> dict\n" in outcome.stdout
    assert "Retrieve daily sales by product SKU" in outcome.stdout
    assert outcome.stdout.startswith("Help on function fetch_sales_data in module __main__:")
    found = value(
        tool_guest,
        "[fetch_sales_data.__name__, fetch_sales_data.__qualname__, fetch_sales_data.__module__,"
        " fetch_sales_data.__doc__, __import__('inspect').isfunction(fetch_sales_data)]",
    )
    assert found == [
        "fetch_sales_data",
        "fetch_sales_data",
        "__main__",
        "Retrieve daily sales by product SKU",
        True,
    ]
    assert value(tool_guest, "__import__('pickle').loads(__import__('pickle').dumps(fetch_sales_data)) is not None")


def test_without_parameters_the_signature_comes_from_the_schema(tool_guest: Guest, engine: ToolEngine) -> None:
    given = tool(
        "search",
        "Search",
        {
            "limit": {"type": "integer", "default": 10, "description": "at most so many"},
            "query": {"type": "string", "description": "what to look for"},
            "tags": {"type": "array"},
            "mode": {"enum": ["fast", "slow"]},
            "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "from": {"type": "string"},
        },
        ["query"],
    )
    engine.give(tool_guest, [given])
    assert value(tool_guest, "str(__import__('inspect').signature(search))") == (
        "(query: str, limit: int = 10, tags: list = None, mode: str = None, price: float | None = None, **arguments)"
    )
    assert value(tool_guest, "search.__doc__") == (
        "Search\n\nParameters:\n    query: what to look for\n    limit: at most so many"
    )
    assert value(tool_guest, "search('a', **{'from': 'b'})") == ["search", {"query": "a", "from": "b"}]


def test_parameters_may_have_the_names_that_we_use_ourselves(tool_guest: Guest, engine: ToolEngine) -> None:
    engine.give(tool_guest, [tool("f", "", {"arguments": {}, "named": {}, "self": {}, "from": {}})])
    assert value(tool_guest, "str(__import__('inspect').signature(f))") == (
        "(arguments=None, named=None, self=None, **arguments_)"
    )
    assert value(tool_guest, "f(arguments=1, named=2, self=3)") == ["f", {"arguments": 1, "named": 2, "self": 3}]


def test_a_required_parameter_after_an_optional_one_can_only_be_named(tool_guest: Guest, engine: ToolEngine) -> None:
    parameters = [{"name": "a", "required": False, "default": 1}, {"name": "b", "required": True}]
    engine.give(tool_guest, [tool("f", parameters=parameters)])
    assert value(tool_guest, "str(__import__('inspect').signature(f))") == "(a=1, *, b)"
    assert value(tool_guest, "f(2, b=3)") == ["f", {"a": 2, "b": 3}]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("fetch_sales_data(sku='A')", {"sku": "A"}),
        ("fetch_sales_data('A', 5)", {"sku": "A", "days": 5}),
        ("fetch_sales_data('A', days=5)", {"sku": "A", "days": 5}),
        ("fetch_sales_data({'sku': 'A', 'days': 2})", {"sku": "A", "days": 2}),
        ("fetch_sales_data()", {}),
        ("fetch_sales_data(sku='ä \\ud800 \\U0001f600', more=[1, 2.5, None, {'a': (True,)}])", None),
    ],
)
def test_arguments_come_by_keyword_in_order_or_as_one_dict(
    tool_guest: Guest, engine: ToolEngine, call: str, arguments: dict[str, Any] | None
) -> None:
    engine.give(tool_guest, [SALES])
    assert tool_guest.run(call).exit_code == 0
    found = engine.calls[0].arguments
    expected = {"sku": "ä \ud800 \U0001f600", "more": [1, 2.5, None, {"a": [True]}]}
    assert found == (expected if arguments is None else arguments)


def test_one_dict_for_a_tool_that_takes_a_dict_is_told_by_its_keys(tool_guest: Guest, engine: ToolEngine) -> None:
    engine.give(tool_guest, [tool("send", "", {"payload": {"type": "object"}}, ["payload"])])
    assert value(tool_guest, "send({'a': 1})") == ["send", {"payload": {"a": 1}}]
    assert value(tool_guest, "send({'payload': {'a': 1}})") == ["send", {"payload": {"a": 1}}]
    assert value(tool_guest, "send(payload={'payload': 1})") == ["send", {"payload": {"payload": 1}}]


def test_none_for_an_optional_parameter_that_cannot_be_null_is_not_sent(tool_guest: Guest, engine: ToolEngine) -> None:
    properties = {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {}}
    engine.give(tool_guest, [tool("f", "", properties)])
    assert value(tool_guest, "f(a=None, b=None, c=None)") == ["f", {"b": None, "c": None}]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("fetch_sales_data(1, 2, 3)", "fetch_sales_data() takes 2 positional arguments but 3 were given"),
        ("fetch_sales_data('A', sku='B')", "fetch_sales_data() got multiple values for argument 'sku'"),
        ("fetch_sales_data(sku={1})", "fetch_sales_data(): sku is of type set, which JSON does not have"),
        ("fetch_sales_data(sku=[0, {'a': b''}])", "sku[1]['a'] is of type bytes, which JSON does not have"),
        ("fetch_sales_data(sku=[{'a': {1: 2}}])", "sku[0]['a'] has the key 1, which is of type int and not str"),
        ("fetch_sales_data({1: 2})", "the dict has the key 1, which is of type int and not str"),
        ("fetch_sales_data(sku=[float('nan')])", "sku[0] is nan, which JSON does not have"),
        ("x = []; x.append(x); fetch_sales_data(sku=x)", "sku[0] contains itself"),
    ],
)
def test_arguments_that_cannot_be_are_a_type_error_that_says_where(
    tool_guest: Guest, engine: ToolEngine, call: str, message: str
) -> None:
    engine.give(tool_guest, [SALES])
    outcome = tool_guest.run(call)
    assert outcome.error is not None
    assert outcome.error["name"] == "TypeError"
    assert outcome.error["message"].endswith(message)
    assert "ramet_guest" not in outcome.stderr
    assert engine.calls == []


def test_numbers_of_numpy_are_numbers(tool_guest: Guest, engine: ToolEngine) -> None:
    pytest.importorskip("numpy")
    engine.give(tool_guest, [SALES])
    tool_guest.run("import numpy as np")
    call = "fetch_sales_data(sku=np.int64(3), days=[np.float32(0.5), np.bool_(True)])"
    assert value(tool_guest, call)[1] == {"sku": 3, "days": [0.5, True]}


def test_an_array_is_no_argument(tool_guest: Guest, engine: ToolEngine) -> None:
    pytest.importorskip("numpy")
    engine.give(tool_guest, [SALES])
    outcome = tool_guest.run("import numpy as np\nfetch_sales_data(sku=np.arange(3), days=None)")
    assert outcome.stderr.endswith(
        "TypeError: fetch_sales_data(): sku is of type numpy.ndarray, which JSON does not have\n"
    )


def test_more_arguments_than_can_be_sent_are_refused_here(tool_guest: Guest, engine: ToolEngine) -> None:
    engine.give(tool_guest, [SALES])
    outcome = tool_guest.run("fetch_sales_data(sku='a' * (17 << 20))")
    assert "ToolError: the arguments must be at most 16777216 bytes of JSON, got 17825" in outcome.stderr
    assert engine.calls == []


def test_a_failed_call_is_a_tool_error_and_shows_the_users_lines_only(
    tool_guest: Guest, start_engine: Callable[[Handler], ToolEngine]
) -> None:
    def fail(call: Call) -> Any:
        raise Failure(call.arguments["kind"], "sku Z is unknown")

    start_engine(fail).give(tool_guest, [tool("fetch", "", {"kind": {"type": "string"}})])
    outcome = tool_guest.run("def f():\n    return fetch('error')\nf()")
    lines = [line for line in outcome.stderr.splitlines() if not set(line) <= set(" ~^")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<cell 1>", line 3, in <module>',
        "    f()",
        '  File "<cell 1>", line 2, in f',
        "    return fetch('error')",
        "ToolError: sku Z is unknown",
    ]
    assert outcome.error == {"name": "ToolError", "message": "sku Z is unknown"}
    code = "try:\n    fetch('invalid')\nexcept ToolError as error:\n    print(error, error.tool, error.kind)"
    assert tool_guest.run(code).stdout == "sku Z is unknown fetch invalid\n"


def test_a_timeout_is_a_tool_error_and_a_timeout_error(
    tool_guest: Guest, start_engine: Callable[[Handler], ToolEngine]
) -> None:
    def fail(call: Call) -> Any:
        raise Failure("timeout", "Calling tool ['x'] timed out (no response after 270s).")

    start_engine(fail).give(tool_guest, [tool("x")])
    for code in ("x()", "await x()", "import asyncio\nasync def f(): await x()\nasyncio.run(f())"):
        outcome = tool_guest.run(code)
        assert outcome.stderr.endswith("\nTimeoutError: Calling tool ['x'] timed out (no response after 270s).\n")
        assert outcome.error is not None
        assert outcome.error["name"] == "TimeoutError"
        assert "ramet_guest" not in outcome.stderr
    code = (
        "import pickle\ntry:\n    x()\nexcept TimeoutError as error:\n    copy = pickle.loads(pickle.dumps(error))\n"
        "    print(isinstance(error, ToolError), error.tool, error.kind, type(copy) is type(error), str(copy))"
    )
    assert tool_guest.run(code).stdout == (
        "True x timeout True Calling tool ['x'] timed out (no response after 270s).\n"
    )


def test_names_that_python_cannot_have_are_changed(tool_guest: Guest, engine: ToolEngine) -> None:
    engine.give(tool_guest, [tool("price-of"), tool("2fast"), tool("class")])
    assert value(tool_guest, "[price_of(), _2fast(), class_()]") == [["price-of", {}], ["2fast", {}], ["class", {}]]


def test_tools_are_not_among_the_names_of_the_user(tool_guest: Guest, engine: ToolEngine) -> None:
    engine.give(tool_guest, [SALES])
    tool_guest.run("x = 1\nown = fetch_sales_data")
    assert names(tool_guest) == {"x", "own"}
    tool_guest.run("fetch_sales_data = 2")
    assert names(tool_guest) == {"x", "own", "fetch_sales_data"}


def test_unchanged_tools_leave_the_namespace_alone_and_others_come_and_go(
    tool_guest: Guest, engine: ToolEngine
) -> None:
    engine.give(tool_guest, [tool("a"), tool("b"), tool("c")])
    tool_guest.run("a = ToolError = 'mine'\nkept, c = b, 'also mine'")
    engine.give(tool_guest, [tool("a"), tool("b"), tool("d")])
    assert value(tool_guest, "[a, b is kept, c, d(), ToolError]") == ["mine", True, "also mine", ["d", {}], "mine"]
    engine.give(tool_guest, [tool("a"), tool("b", "Now with words")])
    assert value(tool_guest, "[a, b is kept, b.__doc__, 'd' in globals()]") == ["mine", False, "Now with words", False]
    engine.give(tool_guest, [])
    assert value(tool_guest, "[a, 'b' in globals(), ToolError]") == ["mine", False, "mine"]
    engine.give(tool_guest, [tool("b")])
    assert value(tool_guest, "[b(), ToolError.__name__]") == [["b", {}], "ToolError"]
    engine.give(tool_guest, [])
    assert value(tool_guest, "'ToolError' in globals()") is False


def test_a_sandbox_without_tools_loads_nothing_for_them(guest: Guest) -> None:
    code = "[name for name in __import__('sys').modules if name.startswith('ramet_guest.tool')]"
    assert value(guest, code) == []


def test_a_template_has_everything_for_tools_loaded_and_no_trace_of_the_warm_up(
    start_guest: Callable[..., Guest], engine: ToolEngine, tmp_path: Path
) -> None:
    guest = start_guest(warm_up=True, commands=str(tmp_path / "run" / "bin"))
    assert not (tmp_path / "run").exists()
    assert value(guest, "'ramet_guest.tools.given_tools' in __import__('sys').modules")
    assert value(guest, "[name for name in globals() if 'tool' in name.lower()]") == []
    engine.give(guest, [SALES])
    assert value(guest, "fetch_sales_data('A')") == ["fetch_sales_data", {"sku": "A"}]
    assert names(guest) == {"json_"}


def test_a_copy_of_a_sandbox_calls_over_connections_of_its_own(tool_guest: Guest, engine: ToolEngine) -> None:
    engine.give(tool_guest, [SALES])
    assert value(tool_guest, "fetch_sales_data('A')")
    tool_guest.send(THAWED, {"reseed": False, "stir": False})
    assert tool_guest._frame(time.monotonic() + PATIENCE_SECONDS)[0] == CONFIGURED
    assert engine.connections[0].closed.wait(PATIENCE_SECONDS)
    assert value(tool_guest, "fetch_sales_data('B')")
    assert len(engine.connections) == 2
