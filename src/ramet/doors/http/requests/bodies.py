"""JSON that a client sent: read strictly, so that a mistake is reported instead of guessed at."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NoReturn, TypeVar

from ramet.protocol.argument_errors import kind_in_json, must, unknown_field, wrong_argument
from ramet.protocol.requests.operations import OperationOptions
from ramet.protocol.requests.options import missing_option, options_of, read_option
from ramet.protocol.requests.sandboxes import SandboxOptions

Options = TypeVar("Options", bound=OperationOptions | SandboxOptions)

_SHOWN_CHARACTERS = 80

# A longer body than this is one of few values.
_LONG_BYTES = 2 * 1024 * 1024
_FIELDS_AT_MOST = 32
_OPEN = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*")
_NAME = re.compile(r'"([A-Za-z0-9_]{1,64})"[ \t\n\r]*:[ \t\n\r]*')
_PLAIN = re.compile(r"true|false|null|-?[0-9][0-9.eE+-]{0,40}")
_NEXT = re.compile(r"[ \t\n\r]*([,}])[ \t\n\r]*")


def parse_object(data: bytes) -> dict[str, object]:
    """A JSON object. Nothing at all is an empty one."""
    if not data.strip():
        return {}
    try:
        value = _parse(data.decode("utf-8"), few_values=len(data) > _LONG_BYTES)
    except RecursionError:
        raise wrong_argument("body", "the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise wrong_argument(
            "body", f"the body must be a JSON object in UTF-8; byte {error.start} is not UTF-8"
        ) from None
    except ValueError as error:
        raise wrong_argument("body", f"the body must be a JSON object; it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise must("body", "be a JSON object", kind_in_json(value), subject="the body")
    if b"\\u" in data:
        _check_text(value)
    return value


def _parse(text: str, few_values: bool) -> object:
    if not few_values:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    # What is long is a text, such as code. As many small values would take seconds to read, and nobody else would be
    # answered meanwhile, not even from another thread: such a body is refused at its first list.
    pairs: list[tuple[str, object]] = []
    at = _found(_OPEN, text, 0).end()
    while len(pairs) < _FIELDS_AT_MOST:
        name = _found(_NAME, text, at)
        at = name.end()
        if text.startswith('"', at):
            value, at = scanstring(text, at + 1, True)
        else:
            plain = _found(_PLAIN, text, at)
            value, at = json.loads(plain[0]), plain.end()
        pairs.append((name[1], value))
        following = _found(_NEXT, text, at)
        at = following.end()
        if following[1] == "}":
            if at < len(text):
                raise ValueError(f"unexpected text after it, at character {at}")
            return _unique(pairs)
    raise ValueError("it has too many fields for its length")


def _found(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise ValueError(f"unexpected character {at}; a long body may only have fields with texts and numbers")
    return found


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the field {name[:_SHOWN_CHARACTERS]!r} is given twice")
            seen.add(name)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_text(value: object) -> None:
    """Half a surrogate pair is no text; those that stand for a byte of a file name (PEP 383) are let through.

    In code it is an error of the cell, not of the request.
    """
    if isinstance(value, dict) and isinstance(value.get("code"), str):
        value = {**value, "code": ""}
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise wrong_argument("body", "the body must be text that UTF-8 can hold; it has a lone surrogate") from None


class JsonBody:
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
            raise unknown_field(next(iter(unknown)), sorted(self._known))

    def options(self, struct: type[Options], only: Collection[str] | None = None, **usual: Any) -> Options:
        """All fields, as the arguments that ``struct`` describes, or ``only`` some of them.

        Null is as good as nothing; ``usual`` replaces defaults. Raises InvalidArgument for one that is not allowed.
        """
        given = usual
        described_by: type = struct
        for name, described in options_of(described_by).items():
            if described.embedded_only or (only is not None and name not in only):
                continue
            field = described.http_name or name
            if self._given(field):
                given[name] = read_option(described, field, self._fields[field])
            elif described.required:
                raise missing_option(described, field)
        self.done()
        options = struct(**given)
        options.check()
        return options

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
            raise must(name, f"be {' or '.join(map(repr, allowed))}", value)
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
        return (
            value
            if type(value) is float and math.isfinite(value)
            else _wrong(name, value, "a finite number below 2**63")
        )

    def flag(self, name: str, default: bool) -> bool:
        if not self._given(name):
            return default
        value = self._take(name)
        return value if isinstance(value, bool) else _wrong(name, value, "true or false")

    def optional_array(self, name: str, allowed: str) -> list[object]:
        """Empty if it is not given."""
        if not self._given(name):
            return []
        value = self._take(name)
        return value if isinstance(value, list) else _wrong(name, value, allowed)

    def _take(self, name: str) -> object:
        self._known.add(name)
        return self._fields.get(name)

    def _given(self, name: str) -> bool:
        """Null is as good as not at all."""
        self._known.add(name)
        return self._fields.get(name) is not None


def _wrong(name: str, value: object, allowed: str) -> NoReturn:
    if value is None:
        raise wrong_argument(name, f"{name} is missing; it must be {allowed}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    raise must(name, f"be {allowed}", value if number else kind_in_json(value))
