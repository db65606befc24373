"""The places in a request where the value of a secret may stand. No I/O.

A server that receives a value can store it and show it to others. Servers take credentials in a few headers and do not
store those; they do store bodies, paths and queries, and may send them back. So a value goes into those headers only,
and anywhere else only if its owner says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from ramet.errors import InvalidArgument
from ramet.protocol import fields
from ramet.protocol.argument_errors import Words, kind_of, must
from ramet.protocol.lazy_dataclasses import dataclass

# Every server reads credentials from these.
USUAL_HEADERS = ("Authorization", "X-Api-Key", "Api-Key")
NAMES_AT_MOST = 20
_CHARACTERS_AT_MOST = 100

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The proxy writes these itself, or does not forward them to hosts of a secret.
_OF_THE_PROXY = frozenset(
    ("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer",
     "transfer-encoding", "upgrade", "range", "if-range", "sec-websocket-extensions")
)  # fmt: skip

FIELDS = ("headers", "query", "path", "body")
_Named = Literal["headers", "query"]


@dataclass(frozen=True, slots=True)
class SecretPlaces:
    headers: tuple[str, ...] = ()  # beside the usual ones
    query: tuple[str, ...] = ()  # names of parameters
    path: bool = False
    body: bool = False

    def header_names(self) -> frozenset[str]:
        """All headers that may carry the value, in lower case."""
        return frozenset(name.lower() for name in (*USUAL_HEADERS, *self.headers))

    def header(self) -> dict[str, object]:
        return {"headers": list(self.headers), "query": list(self.query), "path": self.path, "body": self.body}

    def request(self) -> dict[str, object]:
        """Return the places as a person would write them: without the defaults."""
        return {name: value for name, value in self.header().items() if value}

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SecretPlaces:
        """Read places from a header. A missing field means no such place: older senders mean the usual headers only."""
        return cls(
            headers=fields.texts(header, "headers") if "headers" in header else (),
            query=fields.texts(header, "query") if "query" in header else (),
            path="path" in header and fields.flag(header, "path"),
            body="body" in header and fields.flag(header, "body"),
        )


def make_places(given: Mapping[str, object], argument: str = "", whose: str = "") -> SecretPlaces:
    """Make places from a person's input. Raise InvalidArgument.

    Errors name the field, or, if ``argument`` is given, that argument and the secret, ``whose``.
    """

    def wrong(field: str, requirement: str, got: object) -> InvalidArgument:
        return must(argument or field, requirement, got, subject=f"{field} of {whose}" if argument else None)

    def names(field: _Named) -> tuple[str, ...]:
        values = given.get(field, ())
        # A string is iterable, but its letters are hardly what was meant.
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            example = "X-Token" if field == "headers" else "key"
            raise wrong(field, f"be a list of names such as [{example!r}]", kind_of(values))
        found = list(values)
        for name in found:
            if not isinstance(name, str):
                raise wrong(field, "be a list of strings", Words(f"{kind_of(name)} in it"))
        return tuple(dict.fromkeys(found))

    def flag(field: str) -> bool:
        value = given.get(field, False)
        if not isinstance(value, bool):
            raise wrong(field, "be true or false", kind_of(value))
        return value

    places = SecretPlaces(names("headers"), names("query"), flag("path"), flag("body"))
    for field, requirement, got in _problems(places):
        raise wrong(field, requirement, Words(got))
    return places


def check_places(places: SecretPlaces, argument: str, whose: str) -> None:
    """Check places that came over a connection."""
    make_places(places.header(), argument, whose)


def _problems(places: SecretPlaces) -> Iterator[tuple[str, str, str]]:
    """Yield, for each wrong name, its field, what the field must be, and what was given.

    A message gives the position in the list instead of the name: a user may have written the secret's value there.
    """
    for field, names in (("headers", places.headers), ("query", places.query)):
        if len(names) > NAMES_AT_MOST:
            yield field, f"have at most {NAMES_AT_MOST} names", f"{len(names)}"
        for at, name in enumerate(names, 1):
            if not 1 <= len(name) <= _CHARACTERS_AT_MOST or not name.isprintable():
                requirement = f"hold names of 1 to {_CHARACTERS_AT_MOST} printable characters"
                yield field, requirement, f"something else as name {at}"
    for at, name in enumerate(places.headers, 1):
        if not _HEADER_NAME.fullmatch(name):
            yield "headers", "hold header names such as 'X-Token'", f"something else as name {at}"
        elif name.lower() in _OF_THE_PROXY or name.lower().startswith("proxy-"):
            yield "headers", "not hold a header that the proxy writes itself or drops", f"one as name {at}"
