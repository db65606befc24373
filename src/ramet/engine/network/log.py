"""The log of one sandbox: every connection that its code tried, as reported by the proxy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.network.specs import CONNECTIONS_AT_MOST, Attempt

KEPT = 10_000
_HOST_CHARACTERS = 300
_TEXT_CHARACTERS = 500
_COUNT_AT_MOST = 1 << 53  # the largest count that JSON numbers carry exactly in every language
# Twice the limit: after a restart of the proxy, or under a new body, the old connections end a moment after new ones
# began.
_OPEN_AT_MOST = 2 * CONNECTIONS_AT_MOST

# The number under which the proxy knew the sandbox, and its number of the entry. (0, n): reported by another sandbox.
_Key = tuple[int, int]


class ConnectionLog:
    """The last attempts, in the order in which they began. Belongs to a sandbox id and outlives its bodies."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, Attempt] = OrderedDict()
        # Open connections, including those whose entry was dropped from `_kept`: their bytes still count.
        self._open: dict[_Key, Attempt] = {}
        self.dropped = 0
        self.count = 0  # of all attempts, kept or not
        self.used_bytes = 0  # sent and received over all connections
        self.on_attempt: Callable[[bool], None] | None = None  # called with whether the attempt was allowed
        self._appended = 0

    def __repr__(self) -> str:
        return f"<ConnectionLog {len(self._kept)} attempts, {len(self._open)} open, {self.used_bytes} bytes>"

    def attempts(self) -> list[Attempt]:
        return list(self._kept.values())

    def since(self, count: int) -> list[Attempt]:
        """The attempts after the first ``count`` of all, as far as they are kept."""
        newer = self.count - count
        return list(self._kept.values())[-newer:] if newer > 0 else []

    def tried(self, peer: int, message: Mapping[str, object]) -> None:
        """Add an attempt that the proxy reports. Raises ProtocolError if the report makes no sense."""
        attempt = _shown(Attempt.read({**message, "sent_bytes": 0, "received_bytes": 0}))
        key = peer, fields.whole(message, "entry")
        if len(self._open) >= _OPEN_AT_MOST:
            raise ProtocolError("the proxy tells of more open connections than a sandbox can have")
        self._count(attempt)
        self._keep(key, attempt)
        if attempt.open:
            self._open[key] = attempt

    def counted(self, peer: int, message: Mapping[str, object]) -> None:
        """Update byte counts and state of an attempt. Raises ProtocolError if the report makes no sense."""
        key = peer, fields.whole(message, "entry")
        # A connection that had already ended when it was first reported was never in `_open`.
        known = self._open.get(key) or self._kept.get(key)
        if known is None:
            return
        sent, received = _count(message, "sent"), _count(message, "received")
        # Counts are totals of a connection. A total that shrinks is nonsense, and must not lower the used bytes.
        self.used_bytes += max(0, sent - known.sent_bytes) + max(0, received - known.received_bytes)
        reason = fields.optional_text(message, "reason")
        self._change(
            key,
            replace(
                known,
                sent_bytes=sent,
                received_bytes=received,
                open=fields.flag(message, "open"),
                # An attempt can turn into a refusal: a tunnel is allowed by its host, and its bytes name another.
                allowed=known.allowed and fields.flag(message, "allowed"),
                reason=known.reason if reason is None else _printable(reason, _TEXT_CHARACTERS),
            ),
        )

    def not_told(self, count: int) -> None:
        """Count attempts that the proxy left out because there were too many at once."""
        if count > _COUNT_AT_MOST:
            raise ProtocolError("the proxy cannot have left out more connections than there can be")
        self.dropped += count

    def ended(self, peer: int, why: str) -> None:
        """Mark all open connections of one life at the proxy as ended."""
        for key, attempt in list(self._open.items()):
            if key[0] == peer:
                self._change(key, replace(attempt, open=False, reason=attempt.reason or why))

    def append(self, attempts: Iterable[Attempt]) -> None:
        """Add attempts of a sandbox that installed packages on behalf of this one. That sandbox has counted them."""
        for attempt in attempts:
            self._appended += 1
            self._keep((0, self._appended), replace(attempt, open=False))

    def _count(self, attempt: Attempt) -> None:
        if self.on_attempt is not None:
            self.on_attempt(attempt.allowed)

    def _keep(self, key: _Key, attempt: Attempt) -> None:
        self.count += 1
        self._kept[key] = attempt
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
            self.dropped += 1

    def _change(self, key: _Key, attempt: Attempt) -> None:
        if key in self._kept:
            self._kept[key] = attempt
        if attempt.open:
            self._open[key] = attempt
        else:
            self._open.pop(key, None)


def _shown(attempt: Attempt) -> Attempt:
    """The attempt as it is stored. Code in the sandbox chooses part of names and reasons, so unprintable characters are
    escaped: a log shown on a terminal must not control it or fake another line.
    """
    if not (0 <= attempt.time < 1 << 33 and 0 <= attempt.port <= 65535):
        raise ProtocolError("the proxy tells of a connection at no time, or to no port")
    return replace(
        attempt,
        host=_printable(attempt.host, _HOST_CHARACTERS),
        rule=_optional(attempt.rule),
        reason=_optional(attempt.reason),
        address=_optional(attempt.address),
    )


def _optional(text: str | None) -> str | None:
    return None if text is None else _printable(text, _TEXT_CHARACTERS)


def _printable(text: str, at_most: int) -> str:
    text = text[:at_most]
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def _count(message: Mapping[str, object], name: str) -> int:
    count = fields.natural(message, name)
    if count > _COUNT_AT_MOST:
        raise ProtocolError(f"the proxy tells of too many bytes in {name!r}")
    return count
