"""A connection to a server, over which requests of one client go one after the other while both sides keep it open."""

from __future__ import annotations

import asyncio
import ssl

from ramet.network.connecting.targets import OutgoingConnection, reach
from ramet.network.http.bodies import Incoming
from ramet.network.http.framing import answer_length
from ramet.network.http.heads import AnswerHead, RequestHead, read_answer
from ramet.network.http.request_targets import Asked
from ramet.network.http.writing import AnswerPlan, plan_answer, request_fields
from ramet.network.peers import SandboxPeer
from ramet.network.secrets.certificates import upstream_context
from ramet.network.secrets.peer_secrets import HostSecrets
from ramet.network.streams.stream import Stream
from ramet.protocol.network.specs import Kind

_CONTEXTS_AT_MOST = 100
_contexts: dict[str | None, ssl.SSLContext] = {}


class NotTrusted(Exception):
    """TLS with a server failed. The text says why."""


class UpstreamConnection:
    """A connection to a server and what was decided for it. Owns the target."""

    def __init__(self, peer: SandboxPeer, target: OutgoingConnection, stream: Stream, secure: bool) -> None:
        self.target = target
        self.stream = stream
        self.incoming = Incoming(stream)
        secrets = peer.secrets_for(target.host, target.port)
        self.secrets = HostSecrets(secrets, target.port, secure) if secrets else None
        self.used = 0  # requests sent over it
        # The last results: the next request and answer are probably the same.
        self._fields: tuple[RequestHead, bytes] | None = None
        self._answer: tuple[bytes, bytes, AnswerHead, int] | None = None
        self._plan: tuple[AnswerHead, RequestHead, bool, AnswerPlan] | None = None
        self._peer = peer
        # Compared by `serves`: a request must not use a connection that was allowed under other rules.
        self._decided = peer.decider, peer.secrets

    def __repr__(self) -> str:
        return f"<UpstreamConnection {self.target.host}:{self.target.port}, {self.used} requests>"

    @property
    def piece_bytes(self) -> int:
        return self._peer.limits.piece_bytes

    def serves(self, host: str, port: int) -> bool:
        """Whether another request can go over it: same host, same rules and secrets, no unasked bytes waiting.

        Unasked bytes would be read as the answer to the next request.
        """
        return (
            (self.target.host, self.target.port) == (host, port)
            and self._decided == (self._peer.decider, self._peer.secrets)
            and not self.stream.ended
            and not self.stream.unread_bytes
            and not self.incoming.held
        )

    def fields_of(self, asked: Asked) -> bytes:
        """The fields of a request without a body, as they are sent."""
        # By identity: a repeated request shares the head object of the first one.
        if self._fields is None or self._fields[0] is not asked.head:
            self._fields = asked.head, request_fields(asked, self.secrets, asked.length, False)
        return self._fields[1]

    def read_answer(self, data: bytes, method: bytes) -> tuple[AnswerHead, int]:
        """Parse an answer's head. Returns it with the length of its body. Raises Malformed."""
        known = self._answer
        if known is None or known[0] != data or known[1] != method:
            head = read_answer(data)
            known = self._answer = data, method, head, answer_length(head, method)
        return known[2], known[3]

    def plan(self, head: AnswerHead, asked: Asked, length: int, keep: bool) -> AnswerPlan:
        known = self._plan
        if known is None or known[0] is not head or known[1] is not asked.head or known[2] is not keep:
            plan = plan_answer(head, asked, self.secrets, length, keep)
            if plan.unpacker is not None:  # it has the state of one body
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
    peer: SandboxPeer, host: str, port: int, kind: Kind, secure: bool, target: OutgoingConnection | None = None
) -> UpstreamConnection:
    """Connect to a server. ``target``: an existing connection. Raises TargetRefused, NotTrusted."""
    if target is None:
        target = await reach(peer, host, port, kind)
    if not secure:
        return UpstreamConnection(peer, target, target.stream, secure)
    try:
        context = await _context(peer.network.ca_pem)
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
    return UpstreamConnection(peer, target, stream, secure)


async def _context(more_pem: str | None) -> ssl.SSLContext:
    known = _contexts.get(more_pem)
    if known is None:
        # Loading all certificates of a system would block other connections noticeably.
        known = await asyncio.to_thread(upstream_context, more_pem)
        if len(_contexts) >= _CONTEXTS_AT_MOST:
            _contexts.clear()
        _contexts[more_pem] = known
    return known
