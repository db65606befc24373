"""The connection to a server that requests of one client go over, one after the other, as long as both keep it."""

from __future__ import annotations

import asyncio
import ssl

from ramet.network.guests import Guest
from ramet.network.http.asking import Asked
from ramet.network.http.bodies import Incoming
from ramet.network.http.framing import answer_length
from ramet.network.http.heads import AnswerHead, RequestHead, read_answer
from ramet.network.http.writing import AnswerPlan, plan_answer, request_fields
from ramet.network.reaching.targets import Target, reach
from ramet.network.secrets.certificates import upstream_context
from ramet.network.secrets.guest_secrets import HostSecrets
from ramet.network.streams.stream import Stream
from ramet.protocol.network import Kind

_CONTEXTS_AT_MOST = 100
_contexts: dict[str | None, ssl.SSLContext] = {}


class NotTrusted(Exception):
    """There is no TLS with a server. Its text says why."""


class Upstream:
    """Owns the target."""

    def __init__(self, guest: Guest, target: Target, stream: Stream, secure: bool) -> None:
        self.target = target
        self.stream = stream
        self.incoming = Incoming(stream)
        secrets = guest.secrets_for(target.host, target.port)
        self.secrets = HostSecrets(secrets, target.port, secure) if secrets else None
        self.used = 0  # requests that went over it
        # What was written and read last: the next ones are likely to be the same.
        self._fields: tuple[RequestHead, bytes] | None = None
        self._answer: tuple[bytes, bytes, AnswerHead, int] | None = None
        self._plan: tuple[AnswerHead, RequestHead, bool, AnswerPlan] | None = None
        self._guest = guest
        self._decided = guest.decider, guest.secrets

    def __repr__(self) -> str:
        return f"<Upstream {self.target.host}:{self.target.port}, {self.used} requests>"

    @property
    def piece_bytes(self) -> int:
        return self._guest.limits.piece_bytes

    def serves(self, host: str, port: int) -> bool:
        """Whether another request can go over it: under the rules that it was made by, and with nothing odd waiting."""
        return (
            (self.target.host, self.target.port) == (host, port)
            and self._decided == (self._guest.decider, self._guest.secrets)
            and not self.stream.ended
            and not self.stream.unread_bytes
            and not self.incoming.held
        )

    def fields_of(self, asked: Asked) -> bytes:
        """The fields of a request without a body, as they are sent."""
        if self._fields is None or self._fields[0] is not asked.head:
            self._fields = asked.head, request_fields(asked, self.secrets, asked.length, False)
        return self._fields[1]

    def read_answer(self, data: bytes, method: bytes) -> tuple[AnswerHead, int]:
        """A head, and the length of the body behind it."""
        known = self._answer
        if known is None or known[0] != data or known[1] != method:
            head = read_answer(data)
            known = self._answer = data, method, head, answer_length(head, method)
        return known[2], known[3]

    def plan(self, head: AnswerHead, asked: Asked, length: int, keep: bool) -> AnswerPlan:
        known = self._plan
        if known is None or known[0] is not head or known[1] is not asked.head or known[2] is not keep:
            plan = plan_answer(head, asked, self.secrets, length, keep)
            if plan.unpacker is not None:  # is good for one body
                return plan
            known = self._plan = head, asked.head, keep, plan
        return known[3]

    def close(self) -> None:
        self.stream.close()
        self.target.close()

    def abort(self, reason: str | None = None) -> None:
        self.stream.abort()
        self.target.close(reason)


async def connect(
    guest: Guest, host: str, port: int, kind: Kind, secure: bool, target: Target | None = None
) -> Upstream:
    """Raises Refused, NotTrusted. ``target``: a connection that was made already."""
    if target is None:
        target = await reach(guest, host, port, kind)
    if not secure:
        return Upstream(guest, target, target.stream, secure)
    try:
        context = await _context(guest.network.ca_pem)
        stream = await target.stream.begin_tls(context, host)
    except ssl.SSLCertVerificationError as error:
        problem = f"its certificate is not trusted: {error.verify_message}; Network(ca_pem=...) names who else is"
        target.close(problem)
        raise NotTrusted(problem) from None
    except ssl.SSLError as error:
        target.close("TLS failed")
        raise NotTrusted(f"TLS with it failed: {error.reason or 'the connection ended'}") from None
    except (OSError, TimeoutError):
        why = target.reason or "the connection ended before TLS was agreed on"
        target.close(why)
        raise NotTrusted(why) from None
    except BaseException:
        target.close()
        raise
    return Upstream(guest, target, stream, secure)


async def _context(more_pem: str | None) -> ssl.SSLContext:
    known = _contexts.get(more_pem)
    if known is None:
        # Reading all the certificates of a system takes long enough for others to notice.
        known = await asyncio.to_thread(upstream_context, more_pem)
        if len(_contexts) >= _CONTEXTS_AT_MOST:
            _contexts.clear()
        _contexts[more_pem] = known
    return known
