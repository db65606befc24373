"""What an operation is asked for is described once: the same is refused everywhere, and every door says the same."""

from __future__ import annotations

import pytest

from ramet.doors.http.requests.bodies import JsonBody
from ramet.doors.http.requests.queries import QueryFields
from ramet.doors.mcp import arguments
from ramet.errors import InvalidArgument
from ramet.protocol.network.specs import NetworkSpec
from ramet.protocol.requests.operations import (
    ForkOptions,
    ImportOptions,
    OperationOptions,
    RewindOptions,
    TakeOptions,
    UndoOptions,
)
from ramet.protocol.requests.options import options_of
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.takes import TakeSpec


@pytest.mark.parametrize(
    ("struct", "given", "problem"),
    [
        (UndoOptions, {"n": 0}, "n must be at least 1, got 0"),
        (UndoOptions, {"n": 1001}, "n must be at most 1000, got 1001"),
        (UndoOptions, {"n": "1"}, "n must be a whole number, got a string"),
        (UndoOptions, {"n": True}, "n must be a whole number, got true"),
        (UndoOptions, {"n": 1.5}, "n must be a whole number, got 1.5"),
        (UndoOptions, {"count": 1}, "unknown field 'count'"),
        (ForkOptions, {"n": 257}, "n must be at most 256, got 257"),
        (ForkOptions, {"reseed": 1}, "reseed must be true or false, got 1"),
        (ForkOptions, {"at": 7}, "at must be a string, got 7"),
        (ForkOptions, {"at": "three"}, "at must be a Point or the id of one"),
        (TakeOptions, {"names": "x"}, "names must be a list, or True for all that was changed, got a str"),
        (TakeOptions, {"files": [""]}, "files must not be empty"),
        (TakeOptions, {"prefer": 5, "names": True}, "prefer must be a string, got 5"),
        (TakeOptions, {"prefer": "mine", "names": True}, 'prefer must be "ours", "theirs" or None, got \'mine\''),
        (TakeOptions, {"names": [], "files": False}, "names or files must say what to take, got neither"),
        (RewindOptions, {}, "point is missing; it must be a string"),
        (RewindOptions, {"point": None}, "point is missing; it must be a string"),
        (RewindOptions, {"point": 3}, "point must be a string, got 3"),
        (RewindOptions, {"point": "three"}, "point must be a Point or the id of one"),
    ],
)
def test_what_a_body_asks_for_and_may_not_is_refused_by_name(
    struct: type[OperationOptions], given: dict[str, object], problem: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        JsonBody(given).options(struct)
    assert caught.value.message.startswith(problem)
    assert caught.value.argument == next(iter(given), "point")


def test_null_in_a_body_is_as_good_as_nothing() -> None:
    assert JsonBody({"n": None}).options(UndoOptions) == JsonBody({}).options(UndoOptions) == UndoOptions(n=1)


@pytest.mark.parametrize("header", [{"count": 0}, {"count": "1"}, {"count": None}])
def test_a_frame_is_checked_again(header: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="^n must be "):
        UndoOptions.read({"sandbox": "sbx_1", **header})


def test_a_frame_has_all_that_is_asked_for_and_nothing_that_is_not() -> None:
    assert UndoOptions().header() == {"count": 1}
    assert TakeOptions(names={"x"}, files=["a/../b", "/root/b"]).header() == {"names": ["x"], "files": ["/root/b"]}
    assert TakeOptions.read({"files": ["b"]}).spec() == TakeSpec((), ("/root/b",))
    assert ForkOptions().header() == {"count": 1, "reseed": False, "inherit_secrets": False}
    assert UndoOptions.read({"sandbox": "sbx_1", "count": 7}) == UndoOptions(n=7)


@pytest.mark.parametrize(
    ("tool", "struct"),
    [(arguments.Undo, UndoOptions), (arguments.Rewind, RewindOptions), (arguments.Fork, ForkOptions)],
)
def test_a_tool_tells_a_model_what_the_operation_says(
    tool: type[arguments.Arguments], struct: type[OperationOptions]
) -> None:
    """The models of MCP are of their own: that door uses only what every user can, and may offer less."""
    told = tool.schema_for_models()["properties"]
    described_by: type = struct
    known = options_of(described_by)
    assert {name for name, described in known.items() if described.required} <= told.keys()
    for name in told.keys() - {"sandbox"}:
        schema = {"minimum": 0, "maximum": 0, **known[name].schema}
        assert told[name]["description"] == known[name].help
        assert told[name].get("default") == known[name].default
        assert told[name]["type"] == schema["type"]
        assert schema["minimum"] <= told[name].get("minimum", 0) <= told[name].get("maximum", 0) <= schema["maximum"]


def test_some_of_the_options_of_a_sandbox_can_be_given_again() -> None:
    again = ("timeout_seconds", "persistent", "network")
    asked = JsonBody({"timeout_seconds": 5, "egress": "open"}).options(SandboxOptions, again, persistent=True)
    assert (asked.timeout_seconds, asked.persistent, asked.network) == (5, True, NetworkSpec(open=True))
    assert not JsonBody({"persistent": False}).options(SandboxOptions, again, persistent=True).persistent
    for given, problem in (
        ({"memory_mib": 512}, "unknown field 'memory_mib'"),
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0 seconds, got 0"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            JsonBody(given).options(SandboxOptions, again)


def test_the_limits_of_an_import_are_read_from_the_query() -> None:
    assert QueryFields(b"memory_mib=512").options(ImportOptions) == ImportOptions(memory_mib=512)
    for query, problem in (
        (b"memory_mib=1", "memory_mib must be at least 64, got 1"),
        (b"disk_mib=x", "disk_mib must be a whole number"),
        (b"python=/usr/bin/python3", "unknown field 'python'"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            QueryFields(query).options(ImportOptions)
