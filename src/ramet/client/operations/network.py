"""Operations on the network of a sandbox: read and change its rules, read its log, expose its ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ramet.client.network import check_port, check_rules
from ramet.client.operations.steps import Operation, ask, carry_out
from ramet.errors import ProtocolError
from ramet.protocol import calls, fields
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.frames import encode
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.requests import rule_texts
from ramet.protocol.network.specs import Attempt, NetworkSpec


@dataclass(frozen=True, slots=True)
class Connection(Attempt):
    """A connection that code in a sandbox has tried to make. ``str`` is a line for people."""

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.time, UTC).strftime("%H:%M:%S")
        host = f"[{self.host}]" if ":" in self.host else self.host or "?"  # a request may name no host
        what = "allowed" if self.allowed else "refused"
        by = "" if self.rule is None else f" by {self.rule}"
        why = "" if self.reason is None else f": {self.reason}"
        counted = f", {self.sent_bytes} bytes sent, {self.received_bytes} received" if self.allowed else ""
        return f"{when} {self.kind} {host}:{self.port} {what}{by}{counted}{why}"


class NetworkState(NamedTuple):
    """The rules of a sandbox now, and its attempted connections, the oldest first."""

    rules: tuple[str, ...]
    denied: tuple[str, ...]
    log: list[Connection]
    dropped: int  # attempts that the log no longer has, or never had


def network_state(sandbox_id: str) -> Operation[NetworkState]:
    """Return the rules and the log of a sandbox's network."""
    return ask(encode(calls.NETWORK, {"sandbox": sandbox_id}), _read_state)


def _read_state(header: Mapping[str, object]) -> NetworkState:
    network = NetworkSpec.read(fields.mapping(header, "network"))
    log = []
    for attempt in fields.array(header, "attempts"):
        if not isinstance(attempt, dict):
            raise ProtocolError("an attempt to connect is an object")
        log.append(Connection.read(attempt))
    return NetworkState(
        tuple(rule_texts(network)), tuple(map(str, network.deny)), log, fields.natural(header, "dropped")
    )


def change_rules(sandbox_id: str, *, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> Operation[None]:
    """Add rules to those in force. Raises InvalidArgument if there is no rule, or one that is wrong."""
    allowed, denied = check_rules(allow, "allow"), check_rules(deny, "deny")
    if not allowed and not denied:
        raise wrong_argument("rules", "at least one rule must be given", hint="allow('data.example', '*.example:443')")
    return carry_out(encode(calls.NETWORK_CHANGE, {"sandbox": sandbox_id, "allow": allowed, "deny": denied}))


def expose(sandbox_id: str, port: int, place: object) -> Operation[str]:
    """Let the host connect to a port. Returns the URL.

    An embedded engine answers with a port of this machine, a server with a path below its own address, ``place``.
    """

    def url(header: Mapping[str, object]) -> str:
        if "url" not in header:
            return f"http://127.0.0.1:{fields.whole(header, 'port')}"
        given = fields.text(header, "url").rstrip("/")
        return f"{place}{given}" if given.startswith("/") else given

    return ask(encode(calls.EXPOSE, {"sandbox": sandbox_id, "port": check_port(port)}), url)


def unexpose(sandbox_id: str, port: int) -> Operation[None]:
    """Withdraw the URL of a port."""
    return carry_out(encode(calls.UNEXPOSE, {"sandbox": sandbox_id, "port": check_port(port)}))
