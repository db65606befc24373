"""Recipes of a sandbox as JSON and back: dataclasses that are listed here, tuples, bytes, numbers and text.

Reading creates nothing but these and checks the type of every field.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from functools import cache
from typing import Any

from ramet.freezing.descriptors import recipes
from ramet.freezing.descriptors.maps import SharedMap
from ramet.freezing.images.manifest import ImageRefused
from ramet.freezing.process_state import ProcessState
from ramet.protocol.values.specs import Limits, MountSpec

_DEPTH_AT_MOST = 24


@cache
def _known() -> dict[str, type]:
    # Not `dataclasses.is_dataclass`, which has the methods of all of them generated: 30 milliseconds, for a few in use.
    kinds = [each for each in vars(recipes).values() if isinstance(each, type) and "__dataclass_fields__" in vars(each)]
    return {kind.__name__: kind for kind in (*kinds, SharedMap, ProcessState, Limits, MountSpec)}


def encode(value: object) -> Any:
    """Raises ImageRefused for a value that no image can hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, (tuple, list)):
        return [encode(each) for each in value]
    if isinstance(value, frozenset):
        return {"set": sorted(value)}
    name = type(value).__name__
    if _known().get(name) is not type(value):
        raise ImageRefused(f"an image cannot hold a {name}")
    names = [field.name for field in dataclasses.fields(value)]  # type: ignore[arg-type]
    return {"is": name, "with": {each: encode(getattr(value, each)) for each in names}}


def decode(value: Any, expected: Any) -> Any:
    """The value, which must be of the ``expected`` type. Raises ImageRefused."""
    found = _decode(value, 0)
    if not _fits(found, expected):
        raise ImageRefused(f"a field of the image is {found!r:.60}, expected {expected}")
    return found


def _decode(value: Any, depth: int) -> Any:
    if depth > _DEPTH_AT_MOST:
        raise ImageRefused("the image is nested too deeply")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return tuple(_decode(each, depth + 1) for each in value)
    if isinstance(value, dict):
        if set(value) == {"bytes"} and isinstance(value["bytes"], str):
            try:
                return base64.b64decode(value["bytes"], validate=True)
            except ValueError as error:
                raise ImageRefused(f"bytes of the image cannot be read: {error}") from error
        if set(value) == {"set"} and isinstance(value["set"], list) and all(type(each) is int for each in value["set"]):
            return frozenset(value["set"])
        if set(value) == {"is", "with"} and isinstance(value["with"], dict) and value["is"] in _known():
            return _make(_known()[value["is"]], value["with"], depth)
    raise ImageRefused(f"the image holds something unknown: {value!r:.60}")


def _make(kind: type, found: dict[str, Any], depth: int) -> Any:
    expected = _types(kind)
    if set(found) != set(expected):
        raise ImageRefused(f"a {kind.__name__} of the image has other fields than expected")
    values = {name: _decode(each, depth + 1) for name, each in found.items()}
    for name, each in values.items():
        if not _fits(each, expected[name]):
            raise ImageRefused(f"{name} of a {kind.__name__} of the image is {each!r:.60}, expected {expected[name]}")
    return kind(**values)


@cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fits(value: Any, expected: Any) -> bool:
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(_fits(each, arguments[0]) for each in value)
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    if origin is frozenset:
        return isinstance(value, frozenset)
    if expected is None or expected is type(None):
        return value is None
    if expected is float:
        return type(value) in (int, float)
    if expected in (int, bool):
        return type(value) is expected
    return isinstance(value, expected)
