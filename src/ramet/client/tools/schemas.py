"""What a function's signature, hints and docstring say of it as a tool."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from inspect import Parameter as Taken
from pathlib import PurePath
from typing import Any
from uuid import UUID

from ramet.client.tools.docstrings import parameter_descriptions
from ramet.client.tools.forms import Form, JsonSchema, NotDescribable
from ramet.client.tools.hints import Hints, return_annotation, type_hints
from ramet.protocol.tools import Parameter

_NO_DEFAULT = object()


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function is called with JSON."""

    input_schema: JsonSchema
    parameters: tuple[Parameter, ...]
    returns: str | None
    _named: Mapping[str, Form]
    _rest: Form | None  # of what else may be given, by name
    _required: frozenset[str]
    _positional: tuple[Taken, ...]  # parameters that have no name for callers
    _bound: frozenset[str]  # what the host has given already, by name

    def fits(self, arguments: Mapping[str, object]) -> bool:
        """True only of arguments that fit the schema for certain."""
        if not self._required <= arguments.keys():
            return False
        for name, value in arguments.items():
            form = self._named.get(name, self._rest)
            if form is None or not form.fits(value):
                return False
        return True

    def read(self, arguments: Mapping[str, object]) -> tuple[list[object], dict[str, object]]:
        """What the function is to be called with. Raises what the classes of the hints raise, with the name added."""
        named: dict[str, object] = {}
        for name, value in arguments.items():
            form = self._named.get(name, self._rest)
            try:
                if name in self._bound:
                    raise ValueError("callers may not give it")
                named[name] = value if form is None else form.read(value)
            except Exception as error:
                raise ValueError(f"{name}: {error}") from error
        if not self._positional:
            return [], named
        return [named.pop(one.name, one.default) for one in self._positional], named


def description_of(function: object) -> str:
    """Its whole docstring."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        return inspect.getdoc(type(function).__call__) or inspect.getdoc(function) or ""
    return inspect.getdoc(function) or ""


def describe(function: Callable[..., object]) -> Signature:
    """Raises NotDescribable for a function that cannot be a tool."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        raise NotDescribable("its parameters cannot be read") from None
    told = parameter_descriptions(description_of(function))
    hinted = type_hints(_with_hints(function))
    hints = Hints()
    named: dict[str, Form] = {}
    rest: Form | None = None
    bound = _bound(function)
    parameters: list[Parameter] = []
    properties: dict[str, JsonSchema] = {}
    for name, taken in signature.parameters.items():
        if taken.kind is Taken.VAR_POSITIONAL:
            raise NotDescribable(f"it takes *{name}, but tools are called with named arguments only")
        if name in bound:
            continue
        try:
            form = hints.form(hinted.get(name, Any))
        except NotDescribable as error:
            raise NotDescribable(f"its parameter {name!r}: {error}") from None
        if taken.kind is Taken.VAR_KEYWORD:
            rest = form
            continue
        named[name] = form
        schema = dict(form.schema)
        if name in told:
            schema.setdefault("description", told[name])
        default = _plain_default(taken.default)
        if default is not _NO_DEFAULT:
            schema["default"] = default
        properties[name] = schema
        required = taken.default is Taken.empty
        parameters.append(Parameter(name, required, None if default is _NO_DEFAULT else default, form.annotation))
    required_names = [one.name for one in parameters if one.required]
    input_schema: JsonSchema = {
        "type": "object",
        "properties": properties,
        "required": required_names,
        "additionalProperties": False if rest is None else (rest.schema or True),
    }
    if hints.definitions:
        input_schema["$defs"] = hints.definitions
    taken_in_order = signature.parameters.values()
    return Signature(
        input_schema,
        tuple(parameters),
        return_annotation(hinted["return"]) if "return" in hinted else None,
        named,
        rest,
        frozenset(required_names),
        tuple(one for one in taken_in_order if one.kind is Taken.POSITIONAL_ONLY),
        bound,
    )


def _bound(function: object) -> frozenset[str]:
    """What partials have given by name. It may be a secret, and is nothing that a caller could change."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return frozenset(names)


def _with_hints(function: Any) -> object:
    """Where the hints of something callable are."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return inspect.unwrap(function.__init__ if inspect.isclass(function) else function)
    return type(function).__call__


def _plain_default(value: object) -> object:
    """A default as JSON, or _NO_DEFAULT: then code in the sandbox cannot give it, but may leave it out."""
    if value is Taken.empty:
        return _NO_DEFAULT
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, date | time):
        value = value.isoformat()
    elif isinstance(value, UUID | PurePath):
        value = str(value)
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        return _NO_DEFAULT
