"""Functions as tools: the schema their hints and docstring make, and what of JSON reaches them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import ramet
from ramet import InvalidArgument, Tool
from ramet.client.tools.forms import ANYTHING, JsonForm
from ramet.client.tools.hints import HintTranslator
from ramet.client.tools.tool import WrongArguments, toolset
from ramet.protocol.tools.specs import encode_tools


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Node:
    value: int
    children: list[Node] = field(default_factory=list)
    label: str = field(default="made here", init=False)


class Options(TypedDict):
    limit: int
    order: NotRequired[Literal["up", "down"]]


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Order(pydantic.BaseModel):
    sku: str
    when: datetime
    parts: list[Order] = []


UserId = NewType("UserId", int)


def call(function: Callable[..., object], **arguments: object) -> Any:
    """As it arrives: through JSON, and checked."""
    return Tool(function).bind(json.dumps(arguments).encode())()


def wrong(function: Callable[..., object], **arguments: object) -> str:
    with pytest.raises(WrongArguments) as caught:
        call(function, **arguments)
    return str(caught.value)


def hinted(hint: Any) -> Callable[..., object]:
    def tool(x):  # type: ignore[no-untyped-def]
        return x

    tool.__annotations__["x"] = hint
    return tool


def schema(hint: Any) -> Any:
    return Tool(hinted(hint)).spec.input_schema["properties"]["x"]  # type: ignore[index]


# From hints


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (set[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
            },
        ),
        (dict, {"type": "object"}),
        (Mapping[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 3, None], {"enum": ["a", 3, None]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"enum": [1, 2]}),
        (UserId, {"type": "integer"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (date, {"type": "string", "format": "date"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Path, {"type": "string"}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (Annotated[int, pydantic.Field(description="how many")], {"type": "integer", "description": "how many"}),
        (
            Options,
            {
                "type": "object",
                "properties": {"limit": {"type": "integer"}, "order": {"type": "string", "enum": ["up", "down"]}},
                "required": ["limit"],
                "additionalProperties": False,
            },
        ),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
    ],
    ids=str,
)
def test_the_schema_of_a_hint(hint: Any, expected: object) -> None:
    assert schema(hint) == expected


def test_a_class_that_contains_itself_is_defined_once_and_referred_to() -> None:
    whole = Tool(hinted(Node | None)).spec.input_schema
    assert whole["properties"]["x"] == {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}  # type: ignore[index]
    node = whole["$defs"]["Node"]  # type: ignore[index]
    assert node["properties"]["children"] == {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    assert "label" not in node["properties"]
    Draft202012Validator.check_schema(whole)


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (int, 3.0, 3),
        (float, 3, 3.0),
        (int | float, 3, 3),
        (float | int, 3, 3),
        (float | str, 3, 3.0),
        (str | int, 3.0, 3),
        (int | float, 3.0, 3.0),
        (list[int] | None, [3.0], [3]),
        (date | int, 3.0, 3),
        (Color, "blue", Color.BLUE),
        (Level, 2, Level.HIGH),
        (Literal["a", 1], 1.0, 1),
        (set[int], [1, 1], {1}),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[Color, int], ["red", 1], (Color.RED, 1)),
        (dict[str, Color], {"a": "red"}, {"a": Color.RED}),
        (datetime, "2024-01-01T00:00:00+00:00", datetime.fromisoformat("2024-01-01T00:00:00+00:00")),
        (datetime | str, "tomorrow", "tomorrow"),
        (datetime | str, "2024-01-01", datetime(2024, 1, 1)),
        (date | None, None, None),
        (UUID, str(UUID(int=7)), UUID(int=7)),
        (Path, "/a", Path("/a")),
        (Node, {"value": 1, "children": [{"value": 2}]}, Node(1, [Node(2)])),
        (Options, {"limit": 1}, {"limit": 1}),
        (Point, {"x": 1}, Point(1.0, 0.0)),
        (Order, {"sku": "A", "when": "2024-01-01T00:00:00"}, Order(sku="A", when=datetime(2024, 1, 1))),
        (Order | None, None, None),
        (list[Order], [], []),
    ],
    ids=str,
)
def test_a_handler_gets_what_its_hint_says(hint: Any, given: object, expected: object) -> None:
    arrived = call(hinted(hint), x=given)
    assert arrived == expected
    assert type(arrived) is type(expected)


@pytest.mark.parametrize(
    ("hint", "given", "told"),
    [
        (str, 3, "x: 3 is not of type 'string'"),
        (int, True, "x: True is not of type 'integer'"),
        (int, 1.5, "x: 1.5 is not of type 'integer'"),
        (list[int], [1, "a"], "x[1]: 'a' is not of type 'integer'"),
        (Color, "green", "x: 'green' is not one of ['red', 'blue']"),
        (Literal[1], True, "x: True is not one of [1]"),
        (datetime, "yesterday", "x: Invalid isoformat string: 'yesterday'"),
        (date | None, "yesterday", "x: Invalid isoformat string: 'yesterday'"),
        (Node, {"value": 1, "children": [{"valu": 2}]}, "x.children[0]: "),
        (Options, {"limit": 1, "more": 2}, "x: Additional properties are not allowed"),
        (Order, {"sku": "A", "when": "yesterday"}, "x: 1 validation error for Order"),
        (tuple[int, str], [1], "x: [1] is too short"),
        (float, 10**400, "x: "),
    ],
    ids=str,
)
def test_what_does_not_fit_never_reaches_the_handler(hint: Any, given: object, told: str) -> None:
    reached = []

    def tool(x):  # type: ignore[no-untyped-def]
        reached.append(x)

    tool.__annotations__["x"] = hint
    assert wrong(tool, x=given).startswith(told)
    assert not reached


HINTS = st.recursive(
    st.sampled_from([str, int, float, bool, None, Color, Level, Literal["a", 1], Options, Point, Node, Any]),
    lambda inner: st.one_of(
        inner.map(lambda hint: list[hint]),  # type: ignore[valid-type]
        inner.map(lambda hint: dict[str, hint]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda two: tuple.__class_getitem__(two)),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1] if two[0] and two[1] else list),
    ),
    max_leaves=4,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([1.0, 0.5, "a", "red", "limit"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["limit", "order", "x", "y", "value", "children"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(HINTS, JSON)
def test_the_quick_look_never_lets_through_what_the_schema_would_not(hint: Any, value: object) -> None:
    hints = HintTranslator()
    form: JsonForm = hints.form(hint)
    valid = Draft202012Validator({**form.schema, "$defs": hints.definitions}).is_valid(value)
    if form.fits(value):
        assert valid
        form.read(value)
    elif form is not ANYTHING and valid:
        form.read(value)  # such as 1.0 for an int


# Signatures


def sales(sku: str, /, days: int = 7, *, color: Color = Color.RED, **more: int) -> dict[str, list[float]]:
    """Sales."""
    return {"args": [sku, days, color, more]}  # type: ignore[list-item]


def test_every_kind_of_parameter_but_one_becomes_a_named_argument() -> None:
    spec = Tool(sales).spec
    assert spec.input_schema == {
        "type": "object",
        "properties": {
            "sku": {"type": "string"},
            "days": {"type": "integer", "default": 7},
            "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        },
        "required": ["sku"],
        "additionalProperties": {"type": "integer"},
    }
    assert [(one.name, one.required, one.default, one.annotation) for one in spec.parameters or ()] == [
        ("sku", True, None, "str"),
        ("days", False, 7, "int"),
        ("color", False, "red", "Literal['red', 'blue']"),
    ]
    assert spec.returns == "dict[str, list[float]]"
    assert call(sales, sku="A", color="blue", extra=3) == {"args": ["A", 7, Color.BLUE, {"extra": 3}]}
    assert wrong(sales, sku="A", extra="x") == "extra: 'x' is not of type 'integer'"
    assert wrong(sales) == "'sku' is a required property"


def test_more_arguments_than_there_are_parameters_are_refused() -> None:
    assert "Additional properties are not allowed ('y' was unexpected)" in wrong(hinted(int), x=1, y=2)


def test_a_default_that_json_does_not_have_is_left_to_the_host() -> None:
    default = object()

    def tool(x: Any = default) -> object:
        return x

    assert "default" not in Tool(tool).spec.input_schema["properties"]["x"]  # type: ignore[index]
    assert call(tool) is default


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def sell(self, sku: str) -> str:
        """Sell one."""
        return f"{self.name} sells {sku}"

    def __call__(self, sku: str) -> str:
        """Sell one by itself."""
        return self.sell(sku)

    async def wait(self, sku: str) -> str:
        return sku


def test_methods_partials_and_callable_objects_are_tools() -> None:
    shop = Shop("Anna")
    assert call(shop.sell, sku="A") == "Anna sells A"
    assert Tool(shop.sell).spec.description == "Sell one."
    partial = Tool(functools.partial(sales, "A"), name="sales_of_a")
    assert list(partial.spec.input_schema["properties"]) == ["days", "color"]  # type: ignore[call-overload]
    assert partial.spec.description == "Sales."
    assert Tool(shop, name="shop").bind(b'{"sku": "A"}')() == "Anna sells A"
    assert Tool(shop, name="shop").spec.description == "Sell one by itself."


def test_what_a_partial_has_given_by_name_is_neither_told_nor_changed() -> None:
    """A key of the host, for instance."""

    def fetch(sku: str, key: str = "", **more: object) -> tuple[str, str, dict[str, object]]:
        return sku, key, more

    tool = Tool(functools.partial(functools.partial(fetch, key="secret"), shop="ours"), name="fetch")
    assert b"secret" not in encode_tools([tool.spec])
    assert tool.bind(b'{"sku": "A", "x": 1}')() == ("A", "secret", {"shop": "ours", "x": 1})
    for name in ("key", "shop"):
        with pytest.raises(WrongArguments, match=f"{name}: callers may not give it"):
            tool.bind(json.dumps({"sku": "A", name: "mine"}).encode())


def test_coroutines_are_known_in_any_form() -> None:
    class Waiting:
        async def __call__(self) -> None: ...

    shop = Shop("Anna")
    assert Tool(shop.wait).is_async
    assert Tool(functools.partial(shop.wait, sku="A"), name="p").is_async
    assert Tool(Waiting(), name="w").is_async
    assert not Tool(shop.sell).is_async


def test_a_decorated_function_is_described_as_the_one_inside() -> None:
    @functools.wraps(sales)
    def outside(*arguments: Any, **named: Any) -> object:
        return sales(*arguments, **named)

    assert Tool(outside).spec.input_schema == Tool(sales).spec.input_schema


# Docstrings


def google(sku: str, days: int = 7) -> None:
    """Retrieve sales.

    Longer story: with a colon.

    Args:
        sku (str): of the product,
            in capital letters
        days: how many

    Returns:
        nothing: at all
    """


def numpy_style(sku: str, days: int = 7, more: int = 1) -> None:
    """Retrieve sales.

    Parameters
    ----------
    sku : str
        of the product,
        in capital letters
    days, more : int
        how many

    Returns
    -------
    nothing
        at all
    """


def rest(sku: str, days: int = 7) -> None:
    """Retrieve sales.

    :param sku: of the product,
        in capital letters
    :param int days: how many
    :returns: nothing
    """


@pytest.mark.parametrize("function", [google, numpy_style, rest])
def test_docstrings_describe_the_tool_and_its_parameters(function: Callable[..., object]) -> None:
    spec = Tool(function).spec
    properties: Any = spec.input_schema["properties"]
    assert spec.description.startswith("Retrieve sales.\n")
    assert properties["sku"]["description"] == "of the product, in capital letters"
    assert {one.get("description") for name, one in properties.items() if name != "sku"} == {"how many"}


def test_a_docstring_that_says_nothing_of_parameters_describes_none() -> None:
    def tool(args: int, sku: str = "") -> None:
        """Args: none. Note sku: this is a sentence."""

    assert all("description" not in one for one in Tool(tool).spec.input_schema["properties"].values())  # type: ignore[attr-defined]


# What cannot be a tool


class Strange:
    pass


def star(*names: str) -> None: ...


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (star, "'star' cannot be a tool: it takes *names, but tools are called with named arguments only"),
        (hinted(bytes), "'tool' cannot be a tool: its parameter 'x': bytes has no counterpart in JSON"),
        (hinted(list[Strange]), "its parameter 'x': Strange has no counterpart in JSON"),
        (hinted(dict[int, str]), "a mapping has keys of type int, but JSON only has string keys"),
        (hinted("Missing"), "its type hints cannot be resolved: name 'Missing' is not defined"),
        (hinted(Literal[b"x"]), "Literal has the value b'x', which JSON does not have"),
        (lambda: 1, "has no name"),
        (functools.partial(sales), "has no name"),
        (3, "handler, got an int in it"),
        ({"name": "x"}, "a tool has no handler"),
        ({"handler": sales}, "a tool has no name"),
        ({"name": "x", "handler": sales, "strict": True}, "a tool has the unknown key 'strict'"),
        ({"name": "two words", "handler": sales}, "must be 1 to 64 letters, digits, '_' and '-', got 'two words'"),
        ({"name": "x", "handler": 3, "input_schema": {}}, "the handler of a tool must be callable, got an int"),
        (
            {"name": "x", "handler": sales, "input_schema": []},
            "input_schema must be a dict with a JSON schema, got a list",
        ),
        ({"name": "x", "handler": sales, "input_schema": {"x": object()}}, "its input_schema is not JSON"),
        (
            {"name": "x", "handler": sales, "input_schema": {"type": "array"}},
            "the tool 'x' must have the type 'object', got 'array'",
        ),
        (
            {"name": "x", "handler": sales, "input_schema": {"properties": {"a": {"type": "text"}}}},
            "its input_schema is not a JSON schema: properties.a.type: 'text' is not valid",
        ),
        (
            {"name": "x", "handler": sales, "input_schema": {"properties": {"a": {"$ref": "#/$defs/b"}}}},
            "the reference '#/$defs/b' cannot be found in the schema",
        ),
        (
            {"name": "x", "handler": sales, "input_schema": {"properties": {"a": {"$ref": "http://127.0.0.1/b"}}}},
            "the reference 'http://127.0.0.1/b' points outside the schema; external schemas are not fetched",
        ),
        ({"name": "x", "handler": sales, "input_schema": {"properties": {"a": {"pattern": "("}}}}, "pattern: '('"),
        (
            {"name": "x", "handler": sales, "calls_per_cell": 1.5},
            "calls_per_cell must be None or a whole number, got a float",
        ),
        (
            {"name": "x", "handler": sales, "calls_per_cell": -1},
            "calls_per_cell of the tool 'x' must be from 0 to 1000000000, got -1",
        ),
        (
            {"name": "x", "handler": sales, "timeout_seconds": "1"},
            "timeout_seconds of tool 'x' must be a number of seconds, got '1'",
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_a_tool_says_why_at_once(given: Any, told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        toolset([given])
    assert told in caught.value.message


@pytest.mark.parametrize("given", ["sales", sales, 3, {"name": "x"}])
def test_tools_are_a_list(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="^tools must be a list of functions, .* got a"):
        toolset(given)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="would be the same function"):
        toolset([Tool(sales, name="get-sales"), Tool(sales, name="get_sales")])


# Tools with a schema of their own


def test_the_handler_of_a_schema_gets_its_arguments_by_name_as_they_come() -> None:
    schema = {"type": "object", "properties": {"when": {"type": "string"}}, "required": ["when"]}
    given = {"name": "ask", "description": "Ask.", "input_schema": schema, "handler": lambda **named: named}
    tool = toolset([given]).find("ask")
    assert tool is not None
    schema.clear()  # is the caller's own
    assert tool.bind(b'{"when": "now", "more": 1}')() == {"when": "now", "more": 1}
    with pytest.raises(WrongArguments, match="'when' is a required property"):
        tool.bind(b"{}")


def test_equal_items_are_found_among_very_many() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    tool = Tool(lambda x: len(x), name="n", input_schema=schema)
    many: list[object] = [[number] if number % 2 else {"a": number, "b": True} for number in range(20_000)]
    assert tool.bind(json.dumps({"x": [*many, 1, True, "1", [1, 0], 0, False, None, "", [], {}]}).encode())() == 20_010
    for twice in ({"b": True, "a": 0}, [1.0], [1]):
        with pytest.raises(WrongArguments, match="has non-unique elements"):
            tool.bind(json.dumps({"x": [*many, twice]}).encode())


def test_the_dialect_is_the_one_that_the_schema_names() -> None:
    draft4 = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True}},
    }
    tool = Tool(lambda n: n, name="n", input_schema=draft4)
    assert tool.bind(b'{"n": 1}')() == 1
    with pytest.raises(WrongArguments, match="n: 0 is less than or equal to the minimum of 0"):
        tool.bind(b'{"n": 0}')


@pytest.mark.parametrize("data", [b"", b"[]", b"nothing", b'"x"', b"[" * 100_000, b"\xff", b'{"x": 1'])
def test_arguments_that_are_no_object_are_wrong(data: bytes) -> None:
    with pytest.raises(WrongArguments, match="the arguments are not"):
        Tool(hinted(int)).bind(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"x": NaN}',
        b'{"x": -Infinity}',
        b'{"x": 1e999}',
        '{"x": 1}'.encode("utf-16"),
        '{"x": 1}'.encode("utf-16-le"),
        b'\xef\xbb\xbf{"x": 1}',
        b'{"x": "\xed\xa0\x80"}',
    ],
)
def test_what_only_python_takes_for_json_reaches_no_handler(data: bytes) -> None:
    """And a record of it would not show it."""
    with pytest.raises(WrongArguments, match="the arguments are not JSON"):
        Tool(hinted(Any)).bind(data)


def test_arguments_that_are_nested_too_deeply_are_wrong() -> None:
    data = b'{"x": ' + b'{"value": 1, "children": [' * 400 + b"]}" * 400 + b"}"
    with pytest.raises(WrongArguments):
        Tool(hinted(Node)).bind(data)


def test_a_very_long_value_is_not_told_back_in_full() -> None:
    assert len(wrong(hinted(int), x="a" * 1_000_000)) < 1000


def test_current_tool_call_is_for_handlers_only() -> None:
    with pytest.raises(LookupError, match="no tool call is being answered here"):
        ramet.current_tool_call()
