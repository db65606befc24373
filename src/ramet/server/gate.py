"""Who is calling, and how much they may have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from ramet.errors import EngineClosed, LimitReached, Unauthorized
from ramet.server.errors import Refused
from ramet.server.keys import LOCAL, KeyRow
from ramet.server.link import Link
from ramet.server.news import News
from ramet.server.records import Records
from ramet.server.settings import ServerSettings

_MIB = 1024 * 1024
_LOOPBACK_NAMES = frozenset((b"localhost", b"127.0.0.1", b"[::1]", b"::1"))
# A sandbox was made, and the news of it is still on its way: it counts, but not for ever should the news never come.
_NEWS_SECONDS = 5.0


class Owned(Protocol):
    """Anything with an owner."""

    owner: str


class Door:
    """Tells callers apart by their keys. Holds no state: keys may be made and revoked at any time."""

    def __init__(self, settings: ServerSettings, records: Records) -> None:
        self._records = records
        self._keyless = settings.loopback and not settings.require_key

    def identify(self, headers: Mapping[bytes, bytes]) -> tuple[str, KeyRow | None]:
        """The owner of what this request makes and sees, and the key it came with."""
        authorization = headers.get(b"authorization")
        if authorization is not None:
            scheme, _, secret = authorization.partition(b" ")
            key = self._records.find_key(secret.strip().decode("latin-1")) if scheme.lower() == b"bearer" else None
            if key is None:
                raise Unauthorized("invalid api key", hint="make one with: ramet keys create --name NAME")
            return key.id, key
        if not self._keyless:
            raise Unauthorized(
                "missing Authorization: Bearer <key>", hint="make a key with: ramet keys create --name NAME"
            )
        # Without a key, all that keeps a web page in the user's browser out is that its requests say where from they
        # come: a page of another site has its own Origin, and one that made its name point to us has its own Host.
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is None or _without_port(host) not in _LOOPBACK_NAMES:
            raise Refused(403, "without a key, Host must be a name of this machine", code=Unauthorized.code)
        if origin is not None and origin != b"http://" + host:
            raise Refused(403, "without a key, requests of other web pages are refused", code=Unauthorized.code)
        return LOCAL, None


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.lower().rpartition(b":")
    return name if colon and port.isdigit() and name else host.lower()


class Gate:
    """Counts what each owner has and is about to have. Owners without a key have no limits but the machine's."""

    def __init__(self, link: Link) -> None:
        self._cells: dict[str, int] = {}
        # Per owner: living sandboxes with their memory limits, and rooms that were taken for those to come.
        self._living: dict[str, dict[str, int]] = {}
        self._rooms: dict[str, list[Room]] = {}
        self._templates: dict[str, set[str]] = {}
        self._closing = False
        link.on_news.append(self._heard)

    @staticmethod
    def header(exchange: Owned, fields: Mapping[str, object]) -> dict[str, object]:
        """A header for the engine that sees only what is the caller's."""
        return {**fields, "owner": exchange.owner}

    @property
    def busy(self) -> int:
        """Cells that run or wait, of all owners."""
        return sum(self._cells.values())

    def close(self) -> None:
        """Let nothing new begin: the server is about to stop."""
        self._closing = True

    def check_open(self) -> None:
        if self._closing:
            raise EngineClosed("the server is stopping", hint="try again in a moment")

    def begin_cell(self, owner: str, key: KeyRow | None) -> None:
        """Count a cell, until ``end_cell``."""
        self.check_open()
        running = self._cells.get(owner, 0)
        most = None if key is None else key.limits.concurrent_cells
        if most is not None and running >= most:
            raise LimitReached(
                f"this key has {running} cells running or waiting, and may have {most}",
                hint="wait for some of them to end",
                details={"limit": "concurrent_cells", "allowed": most},
            )
        self._cells[owner] = running + 1

    def end_cell(self, owner: str) -> None:
        left = self._cells[owner] - 1
        if left:
            self._cells[owner] = left
        else:
            del self._cells[owner]

    @contextmanager
    def cell(self, owner: str, key: KeyRow | None) -> Iterator[None]:
        self.begin_cell(owner, key)
        try:
            yield
        finally:
            self.end_cell(owner)

    @contextmanager
    def room(self, owner: str, key: KeyRow | None, sandboxes: int, memory_bytes: int) -> Iterator[Room]:
        """Room for so many new sandboxes, of so much memory together. Say which they became with ``Room.made``."""
        self.check_open()
        if key is not None:
            self._check_room(owner, key, sandboxes, memory_bytes)
        room = Room(sandboxes, memory_bytes)
        rooms = self._rooms.setdefault(owner, [])
        rooms.append(room)
        try:
            yield room
        finally:
            room.expected.difference_update(self._living.get(owner, ()))
            if room.expected:
                room.sandboxes = len(room.expected)
                asyncio.get_running_loop().call_later(_NEWS_SECONDS, self._leave_room, owner, room)
            else:
                self._leave_room(owner, room)

    def _check_room(self, owner: str, key: KeyRow, sandboxes: int, memory_bytes: int) -> None:
        living, rooms = self._living.get(owner, {}), self._rooms.get(owner, ())
        have = len(living) + sum(room.sandboxes for room in rooms)
        most = key.limits.sandboxes
        if most is not None and have + sandboxes > most:
            raise LimitReached(
                f"this key has {have} sandboxes, and may have {most}",
                hint="close some, or ask for a key with a higher limit",
                details={"limit": "sandboxes", "allowed": most},
            )
        if key.limits.memory_mib is not None:
            allowed_bytes = key.limits.memory_mib * _MIB
            have_bytes = sum(living.values()) + sum(room.memory_bytes for room in rooms)
            if have_bytes + memory_bytes > allowed_bytes:
                raise LimitReached(
                    f"the sandboxes of this key may use {have_bytes // _MIB} MiB together, "
                    f"with this {(have_bytes + memory_bytes) // _MIB} MiB, and at most {key.limits.memory_mib} MiB",
                    hint="close some, or ask for less with memory_mib",
                    details={"limit": "memory_mib", "allowed": key.limits.memory_mib},
                )

    def _leave_room(self, owner: str, room: Room) -> None:
        rooms = self._rooms.get(owner)
        if rooms is not None and room in rooms:
            rooms.remove(room)
            if not rooms:
                del self._rooms[owner]

    @contextmanager
    def new_template(self, owner: str, key: KeyRow | None, name: str | None) -> Iterator[None]:
        """Count a template of the owner's own, unless making it fails. None: there is none to make."""
        if name is None:
            yield
            return
        new = name not in self._templates.get(owner, ())
        self.template(owner, key, name)
        try:
            yield
        except BaseException:
            if new:
                self._templates.get(owner, set()).discard(name)
            raise

    def template(self, owner: str, key: KeyRow | None, name: str) -> None:
        """Count a template of the owner's own; one that was counted before costs nothing."""
        known = self._templates.setdefault(owner, set())
        most = None if key is None else key.limits.templates
        if name not in known and most is not None and len(known) >= most:
            raise LimitReached(
                f"this key has {len(known)} templates of its own, and may have {most}",
                hint=f"use one of them: {', '.join(sorted(known)) or 'none'}",
                details={"limit": "templates", "allowed": most},
            )
        known.add(name)

    def _heard(self, news: News) -> None:
        if news.event in ("all", "down"):
            self._living = {}
            self._templates = {}
        for row in news.sandboxes:
            self._living.setdefault(row.owner, {})[row.id] = row.memory_limit_bytes
            self._arrived(row.owner, row.id)
        if news.event == "ended":
            living = self._living.get(news.owner, {})
            living.pop(news.id, None)
            if not living:
                self._living.pop(news.owner, None)
            self._arrived(news.owner, news.id)

    def _arrived(self, owner: str, sandbox_id: str) -> None:
        for room in list(self._rooms.get(owner, ())):
            if sandbox_id in room.expected:
                room.expected.discard(sandbox_id)
                room.memory_bytes -= room.memory_bytes // max(room.sandboxes, 1)
                room.sandboxes -= 1
                if not room.sandboxes:
                    self._leave_room(owner, room)


class Room:
    """Place for sandboxes that are being made."""

    def __init__(self, sandboxes: int, memory_bytes: int) -> None:
        self.sandboxes = sandboxes
        self.memory_bytes = memory_bytes
        self.expected: set[str] = set()

    def made(self, ids: Iterable[str]) -> None:
        """They exist, and count here until the news of them has come."""
        self.expected.update(ids)
