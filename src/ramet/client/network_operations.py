"""The operations of a sandbox's network, as in ``operations``: generators that say what to send."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from ramet.client.operations import Operation, ask
from ramet.errors import ProtocolError
from ramet.protocol import calls, fields
from ramet.protocol.frames import encode
from ramet.protocol.network import Attempt, NetworkSpec
from ramet.protocol.network_requests import rule_texts


@dataclass(frozen=True, slots=True)
class Connection(Attempt):
    """A connection that code in a sandbox has tried to make. ``str`` is a line for people."""

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.time, UTC).strftime("%H:%M:%S")
        host = f"[{self.host}]" if ":" in self.host else self.host or "?"  # of a request that names none
        what = "allowed" if self.allowed else "refused"
        by = "" if self.rule is None else f" by {self.rule}"
        why = "" if self.reason is None else f": {self.reason}"
        counted = f", {self.sent_bytes} bytes sent, {self.received_bytes} received" if self.allowed else ""
        return f"{when} {self.kind} {host}:{self.port} {what}{by}{counted}{why}"


class NetworkState(NamedTuple):
    """The rules of a sandbox as they are, and what was tried, the oldest first."""

    rules: tuple[str, ...]
    denied: tuple[str, ...]
    log: list[Connection]
    dropped: int  # entries that the log does not have any more, or never had


def look(sandbox_id: str) -> Operation[NetworkState]:
    frame = yield from ask(encode(calls.NETWORK, {"sandbox": sandbox_id}))
    network = NetworkSpec.read(fields.mapping(frame.header, "network"))
    log = []
    for attempt in fields.array(frame.header, "attempts"):
        if not isinstance(attempt, dict):
            raise ProtocolError("an attempt to connect is an object")
        log.append(Connection.read(attempt))
    return NetworkState(
        tuple(rule_texts(network)), tuple(map(str, network.deny)), log, fields.natural(frame.header, "dropped")
    )


def change(sandbox_id: str, allow: list[str], deny: list[str]) -> Operation[None]:
    yield from ask(encode(calls.NETWORK_CHANGE, {"sandbox": sandbox_id, "allow": allow, "deny": deny}))


def expose(sandbox_id: str, port: int, place: object) -> Operation[str]:
    """Gives the URL. An engine of this machine tells a port of it, a server that is at ``place`` a path of its own."""
    frame = yield from ask(encode(calls.EXPOSE, {"sandbox": sandbox_id, "port": port}))
    if "url" not in frame.header:
        return f"http://127.0.0.1:{fields.whole(frame.header, 'port')}"
    url = fields.text(frame.header, "url").rstrip("/")
    return f"{place}{url}" if url.startswith("/") else url


def unexpose(sandbox_id: str, port: int) -> Operation[None]:
    yield from ask(encode(calls.UNEXPOSE, {"sandbox": sandbox_id, "port": port}))
