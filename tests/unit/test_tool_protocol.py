"""Tools and records of their calls, as they travel."""

from __future__ import annotations

import json

import pytest

from ramet.errors import InvalidArgument, ProtocolError
from ramet.protocol import calls
from ramet.protocol.calls import Outcome
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder
from ramet.protocol.guest import Rich
from ramet.protocol.tools.records import encode_record, read_records
from ramet.protocol.tools.specs import (
    GivenTools,
    Parameter,
    ToolSpec,
    check_tools,
    encode_tools,
    python_name,
    read_tools,
)
from ramet.protocol.values.results import ToolCallRecord

SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
FULL = ToolSpec(
    "look_up",
    "Looks up a wörd.",
    SCHEMA,
    (Parameter("word", True, annotation="str"), Parameter("deep", False, {"a": [1]})),
    "list[str]",
    calls_per_cell=3,
    timeout_seconds=1.5,
)


def travelled(outcome: Outcome) -> Frame:
    (frame,) = FrameDecoder(FROM_ENGINE).feed(calls.encode_outcome(outcome))
    return frame


def test_tools_travel_unchanged() -> None:
    tools = (FULL, ToolSpec("plain", "", {"type": "object"}))
    assert read_tools(encode_tools(tools)) == tools
    given = GivenTools(tools)
    assert list(given.by_name) == ["look_up", "plain"]
    assert repr(given) == "<GivenTools look_up, plain>"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("look", "look"),
        ("look-up", "look_up"),
        ("9lives", "_9lives"),
        ("class", "class_"),
        ("-", "_"),
        ("None", "None_"),
    ],
)
def test_the_name_of_a_tool_in_python_is_one(name: str, function: str) -> None:
    assert python_name(name) == function
    assert function.isidentifier()


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a.b", "a\n"])
def test_a_name_that_no_tool_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_tools([ToolSpec(name, "", {})])


@pytest.mark.parametrize(
    "plain",
    [
        {"name": "x"},
        {"name": 1, "description": "", "input_schema": {}},
        {"name": "x", "description": "", "input_schema": []},
        {"name": "x", "description": "", "input_schema": {}, "parameters": {}},
        {"name": "x", "description": "", "input_schema": {}, "parameters": [1]},
        {"name": "x", "description": "", "input_schema": {}, "parameters": [{"name": "a"}]},
        {"name": "x", "description": "", "input_schema": {}, "calls_per_cell": 1.5},
        {"name": "x", "description": "", "input_schema": {}, "timeout_seconds": "1"},
    ],
)
def test_a_tool_that_is_none_is_a_breach(plain: object) -> None:
    with pytest.raises(ProtocolError):
        read_tools(json.dumps([plain]).encode())


def test_records_are_at_the_end_of_a_result() -> None:
    rows = [
        encode_record("look", '{"n": 1}', 0.5, "ok", None),
        encode_record("look", None, 1, "error", "not thére"),
        encode_record("odd", "[1, 2", 0.0, "refused", ""),
        encode_record("odd", "[1, 2]", 0.0, "refused", "\ud800"),
    ]
    outcome = Outcome(
        cell_id=1,
        exit_code=0,
        state="kept",
        stdout=b"out",
        stderr=b"err",
        background=b"back",
        rich=(Rich(1, "value", None, (("text/plain", "s", 2),), b"42"),),
        tool_calls=f"[{','.join(rows)}]".encode(),
        tool_calls_dropped=7,
    )
    result = calls.read_result(travelled(outcome))
    assert (result.stdout, result.stderr, result.background, result.value) == ("out", "err", "back", "42")
    assert result.tool_calls == (
        ToolCallRecord("look", {"n": 1}, 0.5, "ok"),
        ToolCallRecord("look", None, 1, "error", "not thére"),
        ToolCallRecord("odd", None, 0.0, "refused", ""),
        ToolCallRecord("odd", None, 0.0, "refused", "\ud800"),
    )
    assert result.tool_calls_dropped == 7


def test_a_result_without_tool_calls_does_not_speak_of_them() -> None:
    frame = travelled(Outcome(cell_id=1, exit_code=0, state="kept"))
    assert not [name for name in frame.header if "tool" in name]
    assert calls.read_result(frame).tool_calls == ()


@pytest.mark.parametrize("tail", [b"{}", b"[1]", b"[[1,2,3]]", b"nonsense", b"[" * 100_000, b'[["a",1,0,"ok",null]]'])
def test_records_that_are_none_are_a_breach(tail: bytes) -> None:
    with pytest.raises(ProtocolError):
        calls.read_result(travelled(Outcome(cell_id=1, exit_code=0, state="kept", tool_calls=tail)))


@pytest.mark.parametrize("arguments", ['{"x": NaN}', '{"x": -Infinity}', '{"x": 1e999}', "[1]", "{", "[" * 100_000])
def test_arguments_that_are_none_are_not_shown_in_a_record(arguments: str) -> None:
    data = f"[{encode_record('look', arguments, 0.1, 'invalid', None)}]".encode()
    assert read_records(data, len(data))[0].arguments is None


def test_records_longer_than_the_result_are_a_breach() -> None:
    frame = travelled(Outcome(cell_id=1, exit_code=0, state="kept", tool_calls=b"[]"))
    with pytest.raises(ProtocolError):
        calls.read_result(frame._replace(header={**frame.header, "tool_calls": 3}))
