"""JSON that a client sent: read strictly, so that a mistake is told instead of guessed at."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import NoReturn

from ramet.protocol.checks import invalid

_SHOWN_CHARACTERS = 80


def parse_object(data: bytes) -> dict[str, object]:
    """A JSON object. Nothing at all is an empty one."""
    if not data.strip():
        return {}
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise invalid("body", "is nested too deeply", "a JSON object") from None
    except UnicodeDecodeError as error:
        raise invalid("body", f"is not UTF-8 at byte {error.start}", "a JSON object in UTF-8") from None
    except ValueError as error:
        raise invalid("body", f"is not JSON: {error}", "a JSON object") from None
    if not isinstance(value, dict):
        raise invalid("body", f"is a JSON {_kind(value)}", "a JSON object")
    if b"\\u" in data:
        _check_text(value)
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice[:_SHOWN_CHARACTERS]!r} is given twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_text(value: object) -> None:
    """Half a surrogate pair is no text; those that stand for a byte of a file name (PEP 383) are let through."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise invalid("body", "has a lone surrogate", "text that UTF-8 can hold") from None


class Body:
    """The fields of a request. Each is asked for by name; ``done`` refuses those that nobody asked for."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = dict(fields)
        self._known: set[str] = set()

    def rest(self) -> dict[str, object]:
        """What nobody has asked for so far."""
        return {name: value for name, value in self._fields.items() if name not in self._known}

    def done(self) -> None:
        unknown = self.rest()
        if unknown:
            name = next(iter(unknown))
            allowed = ", ".join(sorted(self._known)) or "no fields"
            raise invalid(name[:_SHOWN_CHARACTERS], "is not a field of this request", allowed)

    def text(self, name: str) -> str:
        value = self._take(name)
        return value if isinstance(value, str) else _wrong(name, value, "a string")

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self._given(name) else None

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        value = self.optional_text(name)
        if value is None:
            return default
        if value not in allowed:
            raise invalid(name, f"{value[:_SHOWN_CHARACTERS]!r} is unknown", " or ".join(map(repr, allowed)))
        return value

    def whole(self, name: str) -> int:
        value = self._take(name)
        if type(value) is float and value.is_integer():
            value = int(value)  # JSON has one kind of number: 3.0 is 3
        return value if type(value) is int else _wrong(name, value, "a whole number")

    def optional_whole(self, name: str) -> int | None:
        return self.whole(name) if self._given(name) else None

    def optional_number(self, name: str) -> float | None:
        if not self._given(name):
            return None
        value = self._take(name)
        if type(value) is int and abs(value) < 2**63:
            return value
        return value if type(value) is float and math.isfinite(value) else _wrong(name, value, "a number")

    def flag(self, name: str, default: bool) -> bool:
        if not self._given(name):
            return default
        value = self._take(name)
        return value if isinstance(value, bool) else _wrong(name, value, "true or false")

    def _take(self, name: str) -> object:
        self._known.add(name)
        return self._fields.get(name)

    def _given(self, name: str) -> bool:
        """Null is as good as not at all."""
        self._known.add(name)
        return self._fields.get(name) is not None


def _wrong(name: str, value: object, allowed: str) -> NoReturn:
    raise invalid(name, "is missing" if value is None else f"is a JSON {_kind(value)}", allowed)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return "string" if isinstance(value, str) else "number"
