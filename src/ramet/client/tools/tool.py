"""Tool: a function of this program that code in a sandbox can call.

The modules that read signatures and schemas are imported with the first tool: programs without tools do without them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ramet.errors import InvalidArgument
from ramet.protocol.argument_errors import Words, kind_of, must, wrong_argument
from ramet.protocol.tools.socket_frames import read_arguments

if TYPE_CHECKING:
    from ramet.client.tools.schemas import JsonSignature

Handler = Callable[..., object]

_KEYS = ("name", "description", "input_schema", "handler", "calls_per_cell", "timeout_seconds")
_ALLOWED = "a list of functions, ramet.Tool(...), or dicts with name, description, input_schema and handler"


class WrongArguments(Exception):
    """The arguments of a call do not fit the schema; the message says which one, and why."""


class Tool:
    """A function that code in a sandbox can call, under a name, with a schema, and within limits.

    The schema comes from the type hints of the function, which then gets arguments of these types. With a schema of
    your own, the handler gets the arguments by name, as JSON has them. ``calls_per_cell`` limits the calls of one cell,
    ``timeout_seconds`` the time that the code waits for an answer. Raises InvalidArgument at once for a function or
    schema that cannot be a tool.
    """

    __slots__ = ("_signature", "_validator", "handler", "is_async", "spec", "was_fast")

    def __init__(
        self,
        handler: Handler,
        name: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        calls_per_cell: int | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        from inspect import iscoroutinefunction

        from ramet.client.tools.argument_checks import BadSchema, SchemaValidator
        from ramet.client.tools.forms import NotDescribable
        from ramet.client.tools.schemas import describe, description_of
        from ramet.protocol.tools.specs import ToolSpec, check_tools

        if not callable(handler):
            raise must("tools", "be callable", kind_of(handler), subject="the handler of a tool")
        name = _name(handler) if name is None else _text(name, "name")
        self.handler = handler
        self.was_fast = False  # the last call took hardly any time
        self.is_async = iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)
        self._signature: JsonSignature | None = None
        if input_schema is None:
            try:
                self._signature = describe(handler)
            except NotDescribable as error:
                hint = "use type hints that JSON has, or give ramet.Tool(..., input_schema=...)"
                raise _refused(name, str(error), hint) from None
            schema = self._signature.input_schema
        else:
            schema = _plain_schema(name, input_schema)
        self._validator = SchemaValidator(schema)
        self.spec = ToolSpec(
            name,
            description_of(handler) if description is None else _text(description, "description"),
            schema,
            None if self._signature is None else self._signature.parameters,
            None if self._signature is None else self._signature.returns,
            _whole(name, calls_per_cell),
            timeout_seconds,
        )
        check_tools([self.spec])
        if input_schema is not None:
            try:
                self._validator.prove()
            except BadSchema as error:
                problem = f"its input_schema is not a JSON schema: {error}"
                raise _refused(name, problem) from None

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    @property
    def name(self) -> str:
        """The name under which code in a sandbox calls it."""
        return self.spec.name

    def bind(self, data: bytes) -> Callable[[], object]:
        """Return the call of the handler with these arguments, a JSON object. Raises WrongArguments."""
        try:
            arguments = read_arguments(data.decode("utf-8"))
        except (ValueError, RecursionError):
            raise WrongArguments("the arguments are not JSON") from None
        if not isinstance(arguments, dict):
            raise WrongArguments("the arguments are not a JSON object")
        handler, signature = self.handler, self._signature
        if signature is None:
            self._validator.check(arguments)
            return lambda: handler(**arguments)
        try:
            if not signature.fits(arguments):
                self._validator.check(arguments)
            positional, named = signature.read(arguments)
        except WrongArguments:
            raise
        except Exception as error:
            raise WrongArguments(str(error)) from None
        return lambda: handler(*positional, **named)


# A tool as a user may give it: a function, a Tool, or a dict with a schema and a handler.
AnyTool = Handler | Tool | Mapping[str, Any]


class Toolset:
    """The tools of a sandbox, by name and encoded. Immutable."""

    __slots__ = ("_by_name", "data", "names")

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        tools = tuple(tools)
        self.data = _encoded(tools) if tools else b"[]"
        self._by_name = {tool.name: tool for tool in tools}
        self.names = tuple(self._by_name)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def __repr__(self) -> str:
        return f"<Toolset {', '.join(self.names) or 'empty'}>"

    def find(self, name: str) -> Tool | None:
        return self._by_name.get(name)


def _encoded(tools: tuple[Tool, ...]) -> bytes:
    from ramet.protocol.tools.specs import check_size, check_tools, encode_tools

    specs = [tool.spec for tool in tools]
    check_tools(specs)
    data = encode_tools(specs)
    check_size(data)
    return data


NO_TOOLS = Toolset()


def toolset(tools: Iterable[AnyTool] | None) -> Toolset:
    """Return the tools that a user gave as ``tools``. Raises InvalidArgument."""
    if tools is None:
        return NO_TOOLS
    if isinstance(tools, str | bytes | Mapping | Tool) or not isinstance(tools, Iterable):
        raise must("tools", f"be {_ALLOWED}", kind_of(tools))
    return Toolset(_tool(one) for one in tools)


def _tool(given: object) -> Tool:
    if isinstance(given, Tool):
        return given
    if not isinstance(given, Mapping):
        if callable(given):
            return Tool(given)
        raise must("tools", f"be {_ALLOWED}", Words(f"{kind_of(given)} in it"))
    for key in given:
        if key not in _KEYS:
            raise wrong_argument("tools", f"a tool has the unknown key {key!r:.80}", hint=f"keys: {', '.join(_KEYS)}")
    for key in ("name", "handler"):
        if given.get(key) is None:
            raise wrong_argument(
                "tools", f"a tool has no {key}", hint="give a dict with name, description, input_schema and handler"
            )
    return Tool(**given)


def _name(handler: object) -> str:
    name = getattr(handler, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise wrong_argument(
            "tools",
            f"the function of a tool has no name: {handler!r:.80}",
            hint="give it one: ramet.Tool(function, name='...')",
        )
    return name


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise must("tools", "be a string", kind_of(value), subject=f"the {what} of a tool")
    return value


def _whole(name: str, calls_per_cell: object) -> int | None:
    if calls_per_cell is None or type(calls_per_cell) is int:
        return calls_per_cell
    raise _refused(name, f"calls_per_cell must be None or a whole number, got {kind_of(calls_per_cell)}")


def _plain_schema(name: str, schema: object) -> dict[str, Any]:
    """Return a copy, which later changes of the user's object do not reach. Raises InvalidArgument."""
    if not isinstance(schema, Mapping):
        raise _refused(name, f"input_schema must be a dict with a JSON schema, got {kind_of(schema)}")
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(schema), allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise _refused(name, f"its input_schema is not JSON: {error}") from None
    return copied


def _refused(name: str, why: str, hint: str | None = None) -> InvalidArgument:
    return wrong_argument("tools", f"{name!r:.80} cannot be a tool: {why}", hint=hint)
