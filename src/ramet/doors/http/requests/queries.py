"""Reads the query of a URL, as strictly as a body."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from ramet.protocol.argument_errors import Words, must, unknown_field, wrong_argument
from ramet.protocol.requests.operations import OperationOptions
from ramet.protocol.requests.options import WHOLE, options_of

Options = TypeVar("Options", bound=OperationOptions)

_FIELDS_AT_MOST = 1100
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class QueryFields:
    """The fields of a query. Handlers ask for each by name; ``done`` refuses the others.

    A value may be any bytes, as file names may: bytes that are not UTF-8 are decoded as ``os.fsdecode`` does.
    """

    def __init__(self, raw: bytes) -> None:
        parts = raw.split(b"&") if raw else []
        if len(parts) > _FIELDS_AT_MOST:
            raise must("query", f"have at most {_FIELDS_AT_MOST} fields", Words(f"{len(parts)}"))
        self._values: dict[str, list[str]] = {}
        for part in parts:
            name, _, value = part.replace(b"+", b" ").partition(b"=")
            self._values.setdefault(_decoded(name), []).append(_decoded(value))
        self._known: set[str] = set()

    def options(self, struct: type[Options]) -> Options:
        """All fields, as the arguments that ``struct`` describes: whole numbers and texts. Raises InvalidArgument."""
        given: dict[str, Any] = {}
        described_by: type = struct
        for name, described in options_of(described_by).items():
            if not described.embedded_only:
                value = self.optional_whole(name) if described.kind is WHOLE else self.optional_text(name)
                given |= {} if value is None else {name: value}
        self.done()
        options = struct(**given)
        options.check()
        return options

    def done(self) -> None:
        unknown = self._values.keys() - self._known
        if unknown:
            name = ascii(min(unknown))[1:-1][:80]
            raise unknown_field(name, sorted(self._known))

    def texts(self, name: str) -> list[str]:
        """All values of a field that may be repeated."""
        self._known.add(name)
        return self._values.get(name, [])

    def optional_text(self, name: str) -> str | None:
        values = self.texts(name)
        if len(values) > 1:
            raise must(name, "be given once", Words(f"{len(values)} values"))
        return values[0] if values else None

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if value is None:
            raise wrong_argument(name, f"{name} is missing in the query", hint=f"?{name}=...")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.optional_text(name)
        if value is None:
            return default
        if value not in _FLAGS:
            raise must(name, "be true or false", Words(ascii(value[:80])))
        return _FLAGS[value]

    def optional_whole(self, name: str) -> int | None:
        value = self.optional_text(name)
        if value is None:
            return None
        # Bounded first, because int() takes quadratic time for long numbers.
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            raise must(name, "be a whole number that is not negative", Words(ascii(value[:80])))
        return int(value)


def _decoded(data: bytes) -> str:
    return unquote_to_bytes(data).decode("utf-8", "surrogateescape")
