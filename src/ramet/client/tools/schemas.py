"""Describes a function as a tool, from its signature, type hints and docstring."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from datetime import date, time
from enum import Enum
from inspect import Parameter as SignatureParameter
from pathlib import PurePath
from typing import Any
from uuid import UUID

from ramet.client.tools.docstrings import parameter_descriptions
from ramet.client.tools.forms import JsonForm, JsonSchema, NotDescribable
from ramet.client.tools.hints import HintTranslator, return_annotation, type_hints
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.tools.specs import Parameter

_NO_DEFAULT = object()


@dataclass(frozen=True, slots=True)
class JsonSignature:
    """The signature of a function that is called with JSON."""

    input_schema: JsonSchema
    parameters: tuple[Parameter, ...]
    returns: str | None
    _named: Mapping[str, JsonForm]
    _rest: JsonForm | None  # form of **kwargs
    _required: frozenset[str]
    _positional: tuple[SignatureParameter, ...]  # positional-only parameters
    _bound: frozenset[str]  # arguments that functools.partial has bound already

    def fits(self, arguments: Mapping[str, object]) -> bool:
        """Return True only for arguments that fit the schema for certain."""
        if not self._required <= arguments.keys():
            return False
        for name, value in arguments.items():
            form = self._named.get(name, self._rest)
            if form is None or not form.fits(value):
                return False
        return True

    def read(self, arguments: Mapping[str, object]) -> tuple[list[object], dict[str, object]]:
        """Return positional and named arguments for the function. Raises ValueError if one cannot be converted."""
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
    """Return the whole docstring of a function, or of the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        return inspect.getdoc(type(function).__call__) or inspect.getdoc(function) or ""
    return inspect.getdoc(function) or ""


def describe(function: Callable[..., object]) -> JsonSignature:
    """Return the signature. Raises NotDescribable for a function that cannot be a tool."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        raise NotDescribable("its parameters cannot be read") from None
    descriptions = parameter_descriptions(description_of(function))
    hinted = type_hints(_with_hints(function))
    hints = HintTranslator()
    named: dict[str, JsonForm] = {}
    rest: JsonForm | None = None
    bound = _bound(function)
    parameters: list[Parameter] = []
    properties: dict[str, JsonSchema] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is SignatureParameter.VAR_POSITIONAL:
            raise NotDescribable(f"it takes *{name}, but tools are called with named arguments only")
        if name in bound:
            continue
        try:
            form = hints.form(hinted.get(name, Any))
        except NotDescribable as error:
            raise NotDescribable(f"its parameter {name!r}: {error}") from None
        if parameter.kind is SignatureParameter.VAR_KEYWORD:
            rest = form
            continue
        named[name] = form
        schema = dict(form.schema)
        if name in descriptions:
            schema.setdefault("description", descriptions[name])
        default = _plain_default(parameter.default)
        if default is not _NO_DEFAULT:
            schema["default"] = default
        properties[name] = schema
        required = parameter.default is SignatureParameter.empty
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
    in_order = signature.parameters.values()
    return JsonSignature(
        input_schema,
        tuple(parameters),
        return_annotation(hinted["return"]) if "return" in hinted else None,
        named,
        rest,
        frozenset(required_names),
        tuple(one for one in in_order if one.kind is SignatureParameter.POSITIONAL_ONLY),
        bound,
    )


def _bound(function: object) -> frozenset[str]:
    """Return the names that partials have bound. Their values may be secrets, and callers may not change them."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return frozenset(names)


def _with_hints(function: Any) -> object:
    """Return the function or method that has the type hints of a callable."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return inspect.unwrap(function.__init__ if inspect.isclass(function) else function)
    return type(function).__call__


def _plain_default(value: object) -> object:
    """Return a default as JSON, or _NO_DEFAULT if JSON cannot have it: callers may still leave the argument out."""
    if value is SignatureParameter.empty:
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
