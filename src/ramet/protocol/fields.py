"""Typed reading of JSON that another process sent. A value that is not of the promised type is a ProtocolError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from ramet.errors import ProtocolError


def text(header: Mapping[str, object], name: str) -> str:
    value = header.get(name)
    return value if isinstance(value, str) else _wrong(name, value, "a string")


def optional_text(header: Mapping[str, object], name: str) -> str | None:
    value = header.get(name)
    return value if value is None or isinstance(value, str) else _wrong(name, value, "a string or null")


def whole(header: Mapping[str, object], name: str) -> int:
    value = header.get(name)
    # bool is an int in Python, not in JSON.
    return value if type(value) is int else _wrong(name, value, "a whole number")


def optional_whole(header: Mapping[str, object], name: str) -> int | None:
    return None if header.get(name) is None else whole(header, name)


def natural(header: Mapping[str, object], name: str) -> int:
    value = whole(header, name)
    return value if value >= 0 else _wrong(name, value, "zero or more")


def number(header: Mapping[str, object], name: str) -> float:
    value = header.get(name)
    return value if type(value) is float or type(value) is int else _wrong(name, value, "a number")


def optional_number(header: Mapping[str, object], name: str) -> float | None:
    return None if header.get(name) is None else number(header, name)


def flag(header: Mapping[str, object], name: str) -> bool:
    value = header.get(name)
    return value if isinstance(value, bool) else _wrong(name, value, "true or false")


def array(header: Mapping[str, object], name: str) -> list[object]:
    value = header.get(name)
    return value if isinstance(value, list) else _wrong(name, value, "an array")


def texts(header: Mapping[str, object], name: str) -> tuple[str, ...]:
    values = array(header, name)
    return tuple(value if isinstance(value, str) else _wrong(name, value, "strings only") for value in values)


def mapping(header: Mapping[str, object], name: str) -> dict[str, object]:
    value = header.get(name)
    return value if isinstance(value, dict) else _wrong(name, value, "an object")


def optional_mapping(header: Mapping[str, object], name: str) -> dict[str, object] | None:
    return None if header.get(name) is None else mapping(header, name)


def text_mapping(header: Mapping[str, object], name: str) -> dict[str, str]:
    values = mapping(header, name)
    return {key: text(values, key) for key in values}


def _wrong(name: str, value: object, expected: str) -> NoReturn:
    raise ProtocolError(f"field {name!r} of a frame header is a {type(value).__name__}, expected {expected}")
