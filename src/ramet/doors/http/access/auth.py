"""Identifies callers by their keys, and limits what each owner does at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from ramet.doors.http.access.keys import LOCAL, KeyLimits, KeyRow
from ramet.doors.http.records import ServerRecords
from ramet.doors.http.requests.errors import RequestRefused
from ramet.doors.http.settings import ServerSettings
from ramet.errors import EngineClosed, LimitReached, Unauthorized
from ramet.web.sqlite_store import now_ms

_LOOPBACK_NAMES = frozenset((b"localhost", b"127.0.0.1", b"[::1]", b"::1"))
# Values with which a browser marks requests that neither a page of this server nor the user made.
_FROM_OTHER_SITES = frozenset((b"cross-site", b"same-site"))


class Owned(Protocol):
    """Anything with an owner."""

    owner: str


class Operating(Owned, Protocol):
    """A caller who may be an operator."""

    @property
    def operates(self) -> bool: ...


class Authenticator:
    """Tells callers apart by their keys. It caches none: keys may be created and revoked at any time."""

    def __init__(self, settings: ServerSettings, records: ServerRecords) -> None:
        self._records = records
        self._keyless = settings.loopback and not settings.require_key

    def identify(self, headers: Mapping[bytes, bytes]) -> tuple[str, KeyRow | None]:
        """Return the owner of everything that this request makes and sees, and its key.

        Raises Unauthorized or RequestRefused.
        """
        authorization = headers.get(b"authorization")
        if authorization is not None:
            key = self._found(authorization)
            if key is not None:
                return key.id, key
            # Programs written for another server send the key that they have there. On a server that never had a key,
            # it means nothing. On a server with keys, a wrong key must not get what callers without a key get.
            if not self._keyless or self._records.keys.any_for_sandboxes:
                raise Unauthorized("invalid api key", hint=_HINT)
        elif not self._keyless:
            raise Unauthorized("missing Authorization: Bearer <key>", hint=_HINT)
        # Without a key, only these headers keep web pages in the user's browser out: a page of another site has its own
        # Origin, and a page whose name was made to point to us (DNS rebinding) has its own Host.
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is None or _without_port(host) not in _LOOPBACK_NAMES:
            raise RequestRefused(403, "without a key, Host must be a name of this machine", code=Unauthorized.code)
        foreign = headers.get(b"sec-fetch-site") in _FROM_OTHER_SITES  # an image or a script, which sends no Origin
        if foreign or (origin is not None and origin != b"http://" + host):
            raise RequestRefused(403, "without a key, requests of other web pages are refused", code=Unauthorized.code)
        return LOCAL, None

    def _found(self, authorization: bytes) -> KeyRow | None:
        scheme, _, secret = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        key = self._records.keys.find(secret.strip().decode("latin-1"))
        if key is None:
            return None
        if key.expired(now_ms()):
            raise Unauthorized(
                f"this api key expired on {_day(key.expires_ms)}",
                hint=f"the server's operator can renew it: ramet keys set {key.name} --expires 30d",
            )
        self._records.keys.used(key)
        return key


_HINT = "set RAMET_API_KEY to a key of this server; its operator makes one with: ramet keys create --name NAME"


def _day(moment_ms: int | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime((moment_ms or 0) / 1000))


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.lower().rpartition(b":")
    return name if colon and port.isdigit() and name else host.lower()


class ActivityLimits:
    """Counts what each owner does right now. The engine counts what each owner has."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._cells: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._held_bytes: Counter[str] = Counter()
        self._all_requests = 0
        self._all_held_bytes = 0
        self._closing = False

    @staticmethod
    def header(exchange: Owned, fields: Mapping[str, object]) -> dict[str, object]:
        """The header of an engine call that sees only what belongs to the caller."""
        return {**fields, "owner": exchange.owner}

    @staticmethod
    def seeing_header(exchange: Operating, fields: Mapping[str, object]) -> dict[str, object]:
        """The header of a call in which an operator may see all keys: to list, inspect and end sandboxes."""
        return {**fields, "owner": None if exchange.operates else exchange.owner}

    @property
    def closing(self) -> bool:
        """Whether the server is stopping."""
        return self._closing

    @property
    def busy(self) -> int:
        """The number of cells that run or wait, of all owners."""
        return self._cells.total()

    def close(self) -> None:
        """Refuse everything new, because the server is stopping."""
        self._closing = True

    def check_open(self) -> None:
        if self._closing:
            raise EngineClosed("the server is stopping", hint="try again in a moment")

    # Requests, and what they hold in memory

    def enter(self, owner: str) -> None:
        """Count a request until ``leave``. Raises LimitReached (the owner's limit) or RequestRefused (the server's)."""
        settings, of_owner = self._settings, self._requests[owner]
        if of_owner >= settings.requests_of_an_owner:
            raise LimitReached(
                f"this key has {of_owner} requests in progress, which is its limit",
                hint="wait for some of them to end",
                details={"limit": "requests", "allowed": settings.requests_of_an_owner},
            )
        if self._all_requests >= settings.requests:
            raise RequestRefused(503, "the server has as many requests in progress as it can handle", code="busy")
        self._requests[owner] = of_owner + 1
        self._all_requests += 1

    def leave(self, owner: str, held_bytes: int) -> None:
        """Stop counting a request and the bytes held for it."""
        self._requests[owner] -= 1
        self._all_requests -= 1
        if held_bytes:
            self._held_bytes[owner] -= held_bytes
            self._all_held_bytes -= held_bytes
        if not self._requests[owner]:
            del self._requests[owner]
            self._held_bytes.pop(owner, None)

    def hold(self, owner: str, size_bytes: int) -> None:
        """Count bytes of a request or an answer in memory until ``leave``, even if this raises LimitReached."""
        self._held_bytes[owner] += size_bytes
        self._all_held_bytes += size_bytes
        settings = self._settings
        if self._held_bytes[owner] > settings.held_bytes_of_an_owner or self._all_held_bytes > settings.held_bytes:
            raise LimitReached(
                "too many long requests and answers at once",
                hint="ask for fewer at a time; streams and files are passed on piece by piece",
                details={"limit": "held_bytes", "allowed": settings.held_bytes_of_an_owner},
            )

    # Cells

    def begin_cell(self, owner: str, limits: KeyLimits) -> None:
        """Count a cell until ``end_cell``. Raises LimitReached, or EngineClosed while stopping."""
        self.check_open()
        running, most = self._cells[owner], limits.concurrent_cells
        if most is not None and running >= most:
            raise LimitReached(
                f"this key has {running} cells running or waiting; its limit is {most}",
                hint="wait for some of them to end",
                details={"limit": "concurrent_cells", "allowed": most},
            )
        self._cells[owner] = running + 1

    def end_cell(self, owner: str) -> None:
        self._cells[owner] -= 1
        if not self._cells[owner]:
            del self._cells[owner]

    @contextmanager
    def cell(self, owner: str, limits: KeyLimits) -> Iterator[None]:
        self.begin_cell(owner, limits)
        try:
            yield
        finally:
            self.end_cell(owner)
