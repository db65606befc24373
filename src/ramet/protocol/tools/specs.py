"""Tools as a sandbox gets them: a name, a schema, limits. The function that answers a call stays with the client."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence

from ramet.errors import InvalidArgument, ProtocolError
from ramet.protocol import fields
from ramet.protocol.argument_errors import Words, must, wrong_argument
from ramet.protocol.checks import check_seconds
from ramet.protocol.lazy_dataclasses import dataclass

TOOLS_AT_MOST = 1000
TOOLS_BYTES_AT_MOST = 1024 * 1024
_CALLS_AT_MOST = 1_000_000_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the function that represents a tool in the sandbox."""

    name: str
    required: bool
    default: object = None  # JSON
    annotation: str | None = None

    def plain(self) -> dict[str, object]:
        plain: dict[str, object] = {"name": self.name, "required": self.required}
        if not self.required:
            plain["default"] = self.default
        if self.annotation is not None:
            plain["annotation"] = self.annotation
        return plain

    @classmethod
    def read(cls, value: object) -> Parameter:
        if not isinstance(value, dict):
            raise ProtocolError("a parameter of a tool is an object")
        return cls(
            fields.text(value, "name"),
            fields.flag(value, "required"),
            value.get("default"),
            fields.optional_text(value, "annotation"),
        )


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool. Without ``parameters``, the properties of its schema are its parameters."""

    name: str
    description: str
    input_schema: Mapping[str, object]
    parameters: tuple[Parameter, ...] | None = None
    returns: str | None = None
    calls_per_cell: int | None = None
    timeout_seconds: float | None = None

    def plain(self) -> dict[str, object]:
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
            "parameters": None if self.parameters is None else [one.plain() for one in self.parameters],
            "returns": self.returns,
            "calls_per_cell": self.calls_per_cell,
            "timeout_seconds": self.timeout_seconds,
        }

    @classmethod
    def read(cls, value: object) -> ToolSpec:
        if not isinstance(value, dict):
            raise ProtocolError("a tool is an object")
        parameters = None if value.get("parameters") is None else fields.array(value, "parameters")
        return cls(
            fields.text(value, "name"),
            fields.text(value, "description"),
            fields.mapping(value, "input_schema"),
            None if parameters is None else tuple(Parameter.read(one) for one in parameters),
            fields.optional_text(value, "returns"),
            fields.optional_whole(value, "calls_per_cell"),
            fields.optional_number(value, "timeout_seconds"),
        )


class GivenTools:
    """All tools of a sandbox. Equal sets are the same object, or have the same ``encoded``."""

    __slots__ = ("by_name", "encoded")

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.by_name: Mapping[str, ToolSpec] = {tool.name: tool for tool in tools}
        self.encoded = encode_tools(tools)

    def __repr__(self) -> str:
        return f"<GivenTools {', '.join(self.by_name) or 'none'}>"


def encode_tools(tools: Sequence[ToolSpec]) -> bytes:
    """Encode all tools of a sandbox."""
    return json.dumps([tool.plain() for tool in tools], separators=(",", ":")).encode("ascii")


def read_tools(data: bytes) -> tuple[ToolSpec, ...]:
    """Decode the tools of a sandbox. ``check_tools`` checks whether they are allowed."""
    if len(data) > TOOLS_BYTES_AT_MOST:
        raise _too_large(len(data))
    try:
        values = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ProtocolError("tools that are not JSON") from None
    if not isinstance(values, list):
        raise ProtocolError("tools are an array")
    return tuple(ToolSpec.read(value) for value in values)


def check_tools(tools: Sequence[ToolSpec]) -> None:
    """Raise InvalidArgument for a tool that no sandbox can have."""
    if len(tools) > TOOLS_AT_MOST:
        raise must("tools", f"have at most {TOOLS_AT_MOST} entries", Words(f"{len(tools)}"))
    taken: dict[str, str] = {}
    for tool in tools:
        _check(tool)
        function = python_name(tool.name)
        if function in taken:
            raise wrong_argument(
                "tools",
                f"the tools {taken[function]!r} and {tool.name!r} would be the same function in Python, {function}()",
                hint="rename one of them",
            )
        taken[function] = tool.name


def check_size(data: bytes) -> None:
    """Raise InvalidArgument for tools that are too large to send."""
    if len(data) > TOOLS_BYTES_AT_MOST:
        raise _too_large(len(data))


def python_name(name: str) -> str:
    """Return a tool's name in Python code."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    if plain[:1].isdigit():
        plain = f"_{plain}"
    return f"{plain}_" if keyword.iskeyword(plain) else plain


def _check(tool: ToolSpec) -> None:
    if _NAME.fullmatch(tool.name) is None:
        raise must("tools", "be 1 to 64 letters, digits, '_' and '-'", tool.name, subject="the name of a tool")
    kind = tool.input_schema.get("type", "object")
    if kind != "object":
        raise must("tools", "have the type 'object'", kind, subject=f"the input schema of the tool {tool.name!r}")
    if tool.calls_per_cell is not None and not 0 <= tool.calls_per_cell <= _CALLS_AT_MOST:
        raise must(
            "tools",
            f"be from 0 to {_CALLS_AT_MOST}",
            tool.calls_per_cell,
            subject=f"calls_per_cell of the tool {tool.name!r}",
        )
    check_seconds(tool.timeout_seconds, f"timeout_seconds of tool {tool.name!r}")


def _too_large(count: int) -> InvalidArgument:
    return must("tools", f"be at most {TOOLS_BYTES_AT_MOST} bytes of JSON", Words(f"{count} bytes"))
