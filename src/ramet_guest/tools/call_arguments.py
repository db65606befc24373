"""Collects the arguments of a call into a JSON object: from keywords, from arguments in order, or from one dict."""

from __future__ import annotations

import math
import sys
from typing import Any

from ramet_guest.comparing.pieces import name_of
from ramet_guest.tools.errors import ToolError
from ramet_guest.tools.json_reader import compact_writer
from ramet_guest.wire import TOOL_ARGUMENT_BYTES_AT_MOST

_SIMPLE = frozenset((str, int, float, bool, type(None)))


class Unfit(Exception):
    """Raised for a value that JSON cannot represent."""


def gather(
    function: str,
    order: tuple[str, ...],
    first_is_object: bool,
    positional: tuple[Any, ...],
    named: dict[str, Any],
) -> dict[str, Any]:
    """Collects the arguments. Raises TypeError as a function with these parameters would."""
    if not positional:
        return named
    only = positional[0]
    # A single dict holds all arguments, unless its keys show that it is the value of the first parameter.
    if (
        len(positional) == 1
        and not named
        and isinstance(only, dict)
        and not (first_is_object and not only.keys() <= set(order))
    ):
        return only
    if len(positional) > len(order):
        plural = "" if len(order) == 1 else "s"
        raise TypeError(f"{function}() takes {len(order)} positional argument{plural} but {len(positional)} were given")
    arguments = dict(zip(order, positional, strict=False))
    for name in named:
        if name in arguments:
            raise TypeError(f"{function}() got multiple values for argument {name!r}")
    arguments.update(named)
    return arguments


def encode(function: str, tool: str, arguments: dict[str, Any]) -> bytes:
    """Encodes the arguments. Raises TypeError that names the place of a value which JSON does not have."""
    try:
        if not _SIMPLE.issuperset(map(type, arguments.values())) or not only_text(arguments):
            look_for_keys(arguments)
        text = _write(arguments)
    except (Unfit, ValueError, RecursionError):
        problem = first_problem(arguments, "", set()) or "the arguments cannot be written as JSON"
        raise TypeError(f"{function}(): {problem}") from None
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        encoded = in_ascii(text)
    if len(encoded) > TOOL_ARGUMENT_BYTES_AT_MOST:
        message = f"the arguments must be at most {TOOL_ARGUMENT_BYTES_AT_MOST} bytes of JSON, got {len(encoded)}"
        raise ToolError(message, tool, "invalid")
    return encoded


def stand_in(value: Any) -> Any:
    """Converts a type that the writer does not know: numpy's numbers become Python's."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(type(value), getattr(numpy, "generic", ())):
        plain: Any = value.item()
        if type(plain) in _SIMPLE:
            return plain
    raise Unfit


_write = compact_writer(stand_in)


def only_text(keys: Any) -> bool:
    return all(isinstance(key, str) for key in keys)


def look_for_keys(value: Any) -> None:
    """Raises for keys that are not strings, which the writer would convert silently. Fast for lists of numbers."""
    waiting = [value]
    seen = set()
    while waiting:
        container = waiting.pop()
        if id(container) in seen:
            continue  # shared, or inside itself, which the writer detects
        seen.add(id(container))
        if isinstance(container, dict):
            if not only_text(container):
                raise Unfit
            container = container.values()
        if not _SIMPLE.issuperset(map(type, container)):
            waiting.extend(inside for inside in container if isinstance(inside, (dict, list, tuple)))


def first_problem(value: Any, place: str, above: set[int]) -> str | None:
    """Describes where a value is that JSON does not have."""
    if id(value) in above:
        return f"{place or 'the dict'} contains itself"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {value!r}, which JSON does not have"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return (
                    f"{place or 'the dict'} has the key {key!r:.80}, which is of type {name_of(type(key))} and not str"
                )
        pairs = [(f"{place}[{key!r:.80}]" if place else key, inside) for key, inside in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(f"{place}[{number}]", inside) for number, inside in enumerate(value)]
    else:
        try:
            _write(value)
        except Unfit:
            return f"{place} is of type {name_of(type(value))}, which JSON does not have"
        except ValueError as error:
            return f"{place}: {error}"
        return None
    try:
        for inner_place, inside in pairs:
            found = first_problem(inside, inner_place, above | {id(value)})
            if found is not None:
                return found
    except RecursionError:
        return f"{place[:80]} is nested too deeply"
    return None


def in_ascii(text: str) -> bytes:
    """Writes half a surrogate pair as an escape, the only form that JSON has for it in any string."""
    return "".join(
        character if not 0xD800 <= ord(character) <= 0xDFFF else f"\\u{ord(character):04x}" for character in text
    ).encode()
