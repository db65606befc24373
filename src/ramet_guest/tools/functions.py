"""Makes the Python function of a tool, which looks like any other function."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any

from ramet_guest.tools import call_arguments, calls
from ramet_guest.tools.formats import formats
from ramet_guest.tools.frames import pack
from ramet_guest.tools.pending import PendingCall
from ramet_guest.tools.schemas import properties_of, types_of
from ramet_guest.tools.signatures import document, python_name, signature_of
from ramet_guest.wire import TOOL_CALL

_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_modules = sys.modules


class GuestTool:
    """What a call needs to know about its tool."""

    __slots__ = ("first_is_object", "function", "header", "name", "omitted_if_none", "order")

    def __init__(self, given: dict[str, Any]) -> None:
        self.name: str = given["name"]
        self.function = python_name(self.name)
        self.header = b'{"tool":"%s","accepts":' % self.name.encode("ascii")
        schema: dict[str, Any] = given["input_schema"]
        properties = properties_of(schema)
        shown = signature_of(given).parameters.values()
        self.order = tuple(one.name for one in shown if one.kind is Parameter.POSITIONAL_OR_KEYWORD)
        self.first_is_object = bool(self.order) and takes_objects(properties.get(self.order[0], {}), schema)
        # The signature shows None where the default is unknown: None then means that the argument is not given.
        self.omitted_if_none = frozenset(
            one.name
            for one in shown
            if one.default is None and "null" not in (types_of(properties.get(one.name, {}), schema) or ("null",))
        )

    def request(self, positional: tuple[Any, ...], named: dict[str, Any]) -> bytes:
        """Returns the frame of a call. Raises TypeError for arguments that the tool cannot take."""
        arguments = call_arguments.gather(self.function, self.order, self.first_is_object, positional, named)
        if self.omitted_if_none and any(value is None for value in arguments.values()):
            arguments = {
                name: value
                for name, value in arguments.items()
                if value is not None or name not in self.omitted_if_none
            }
        blob = call_arguments.encode(self.function, self.name, arguments)
        formats.look()
        return pack(TOOL_CALL, self.header + formats.encoded + b"}", blob)


# Tools by their JSON description. A function holds that text and not the tool, see `make_function`.
_tools: dict[str, GuestTool] = {}


def make_function(given: dict[str, Any], list_path: str) -> FunctionType:
    """Makes the function of a tool from its description. `list_path` is the file that names the tool socket."""
    told = json.dumps(given)
    folder = _PACKAGE_FOLDER

    # The function finds everything it needs from plain text, so that it works wherever cloudpickle takes it: joblib's
    # workers are programs of their own and have not imported this package.
    def call(*arguments: Any, **named: Any) -> Any:
        import sys

        module: Any = sys.modules.get("ramet_guest.tools.functions")
        if module is None:
            from importlib import import_module

            sys.path.append(folder)
            try:
                module = import_module("ramet_guest.tools.functions")
            finally:
                sys.path.remove(folder)
            module.begin_in_a_strange_process(list_path)
        return module.call(told, arguments, named)

    name = python_name(given["name"])
    call.__name__ = call.__qualname__ = name
    # Lets forked processes find it by its name.
    call.__module__ = "__main__"
    call.__code__ = call.__code__.replace(co_name=name, co_qualname=name)
    call.__doc__ = document(given)
    signature = signature_of(given)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        one.name: one.annotation for one in signature.parameters.values() if one.annotation is not Parameter.empty
    }
    if signature.return_annotation is not Signature.empty:
        call.__annotations__["return"] = signature.return_annotation
    assert isinstance(call, FunctionType)
    return call


def forget() -> None:
    """Forgets all tools, because the engine gave others.

    Code that kept a function can still call it; the engine refuses.
    """
    _tools.clear()


def begin_in_a_strange_process(list_path: str) -> None:
    with open(list_path, encoding="utf-8") as file:
        calls.connections.use(json.load(file)["socket"])


def call(told: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Calls a tool and waits for its value, or returns a coroutine if an event loop is running."""
    tool = _tools.get(told)
    if tool is None:
        tool = _tools[told] = GuestTool(json.loads(told))
    request = tool.request(arguments, named)
    events = _modules.get("asyncio.events")
    if events is not None and events._get_running_loop() is not None:
        # Frame 2 is the caller of the tool's function.
        return PendingCall(tool.function, partial(wait, tool.name, request), sys._getframe(2))
    value, error = calls.call(tool.name, request)
    if error is not None:
        raise error
    return value


async def wait(tool: str, request: bytes) -> Any:
    from ramet_guest.tools import awaiting  # asyncio is there already

    value, error = await awaiting.call(tool, request)
    if error is not None:
        raise error
    return value


def takes_objects(schema: dict[str, Any], root: dict[str, Any]) -> bool:
    kinds = types_of(schema, root)
    return not kinds or "object" in kinds
