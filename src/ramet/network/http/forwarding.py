"""Serves HTTP/1 to a program in a sandbox: its requests one after the other, each decided on its own.

client ── head ──▶ strict reader ──▶ host and port ──▶ reach, or reuse the last connection ──▶ head, written anew
client ◀── head, written anew ◀── strict reader ◀── server                 bodies flow both ways at full speed
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from ramet.network.connecting.targets import OutgoingConnection, TargetRefused
from ramet.network.http import timeouts as times
from ramet.network.http.bodies import Change, CutShort, HttpBody, Incoming, pass_on
from ramet.network.http.framing import UNTIL_END
from ramet.network.http.heads import AnswerHead, Malformed, check_beginning, read_request
from ramet.network.http.refusals import failure, malformed, refusal
from ramet.network.http.request_sending import SENT, Sending, send, send_at_once
from ramet.network.http.request_targets import Asked, Connect, Repeated, asked_for, read_asked
from ramet.network.http.timeouts import ConnectionTimeout
from ramet.network.http.upstream import NotTrusted, UpstreamConnection, connect
from ramet.network.http.websocket_frames import MaskedFrames
from ramet.network.http.websockets import relay
from ramet.network.http.writing import AnswerPlan, interim_head, switching_head
from ramet.network.peers import SandboxPeer
from ramet.network.streams.stream import Stream
from ramet.protocol.network.specs import Kind

# A server may send 1xx heads without end, each of which resets the timeout.
_INTERIM_AT_MOST = 100
# Methods that are retried when a kept connection turns out to be closed: the idempotent ones of RFC 9110, 9.2.2.
_SENT_AGAIN = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"PROPFIND", b"REPORT"})
_LINGER_BYTES = 1 << 20
# An answer up to this size that has arrived whole is written together with its head, in one packet.
_AT_ONCE_BYTES = 64 * 1024


async def forward(
    client: Stream,
    peer: SandboxPeer,
    fixed: tuple[str, int] | None,
    secure: bool,
    target: OutgoingConnection | None = None,
) -> Connect | None:
    """Serve a client until its connection ends, or until it asks for a tunnel, which is returned.

    After a tunnel request the client belongs to the caller again. ``fixed``: the host and port that this connection is
    for, inside a tunnel. ``secure``: use TLS to the server. ``target``: an existing connection to it, which is ours
    from now on.
    """
    connection = _ClientConnection(client, peer, fixed, secure, target)
    try:
        return await connection.serve()
    finally:
        connection.close()


class _Over(Exception):
    """The client's connection is over, so no answer can be sent."""


class _NoAnswer(ConnectionError):
    """A server has closed a reused connection without sending an answer."""


class _ClientConnection:
    """One client's connection and the state of its current request."""

    def __init__(
        self,
        client: Stream,
        peer: SandboxPeer,
        fixed: tuple[str, int] | None,
        secure: bool,
        target: OutgoingConnection | None,
    ) -> None:
        self._client = client
        self._incoming = Incoming(client)
        self._peer = peer
        self._fixed = fixed
        self._secure = secure
        self._target = target
        self._kind: Kind = target.entry.kind if target is not None else "http"
        self._upstream: UpstreamConnection | None = None
        self._sending: Sending | None = None
        # Whom we wait for: the client's next request, the server's answer, or both while the answer is passed on.
        # Decides whom a timeout closes.
        self._waiting: Literal["client", "server", "both"] = "client"
        self._timeout = ConnectionTimeout(self._give_up)
        self._handed_over = False
        self._last: Repeated | None = None
        self._beginning = b""  # the beginning of a head that has not arrived whole, for the log

    async def serve(self) -> Connect | None:
        head = b""
        try:
            while True:
                self._timeout.give(times.IDLE_SECONDS)
                # Reset before each read: if reading raises, the log must not show the previous request.
                head = b""
                head = await self._incoming.head(self._check_beginning, self._timeout)
                if not head:
                    return None
                asked = self._read(head)
                if isinstance(asked, Connect):
                    # Bytes that arrived after the CONNECT belong to the tunnel.
                    self._client.unread(self._incoming.held)
                    self._handed_over = True
                    return asked
                if not await self._serve_one(asked):
                    return None
        except Malformed as error:
            self._tell_malformed(head or self._beginning, str(error))
            await self._say_last(malformed(str(error)))
        except (_Over, ConnectionError):
            pass  # the client is gone, so no answer can be sent
        return None

    def _check_beginning(self, data: bytes, seen: int) -> None:
        self._beginning = data
        check_beginning(data, seen)

    def _tell_malformed(self, head: bytes, why: str) -> None:
        """Log the refusal on its open connection if there is one, else as a new entry."""
        if self._sending is not None and self._sending.malformed is not None:
            return  # the connection over which a part of it went has been logged with this reason
        reason = f"this request is not passed on: {why}"
        target = self._target if self._upstream is None else self._upstream.target
        # Nothing was sent over it yet, so it counts as never allowed.
        if target is not None and not target.entry.sent:
            return target.refuse(reason)
        host, port = self._fixed or asked_for(head)
        self._peer.entries.tried(self._kind, host, port, False, None, reason)

    def _read(self, head: bytes) -> Asked | Connect:
        """Parse a head. Most requests of a client differ from the last one only in their path."""
        again = self._last.read(head) if self._last is not None else None
        if again is not None:
            return again
        asked = read_asked(read_request(head), self._fixed, self._secure)
        self._last = Repeated(head, asked) if isinstance(asked, Asked) else None
        return asked

    def close(self) -> None:
        # The timer first: firing in the middle of this would act on closed streams.
        self._timeout.close()
        self._client.when_gone = None
        if self._sending is not None:
            self._sending.cancel()
        self._drop_upstream()
        # A connection made for the first request, which never came.
        if self._target is not None:
            self._target.close()
        if not self._handed_over:
            self._client.close()

    async def _serve_one(self, asked: Asked) -> bool:
        """Serve one request. Returns whether another may follow on this connection."""
        self._timeout.give(times.ANSWER_SECONDS)
        # A client that has shut down its sending side may still wait for the answer, or be gone: a shorter timeout for
        # it.
        self._client.when_gone = lambda: self._timeout.shorten(times.GONE_SECONDS)
        # It may have ended before the callback was set, and would not report it again.
        if self._client.ended:
            self._timeout.shorten(times.GONE_SECONDS)
        # Only without a body: one that was streamed to the server is not there any more to be sent again.
        again = asked.head.method in _SENT_AGAIN and not asked.length
        try:
            while True:
                upstream = await self._upstream_for(asked)
                try:
                    return await self._exchange(asked, upstream)
                except _NoAnswer:
                    self._drop_upstream()
                    if not again:  # as if the server had closed on the client itself, which then decides
                        raise _Over from None
                    # Once: a second failure happens on a fresh connection, and is the server's real answer.
                    again = False
        except TargetRefused as refused:
            keep = self._no_body_left(asked)
            return await self._say(refusal(refused, asked.host, asked.port, asked.head.method, keep), keep)
        except NotTrusted as error:
            return await self._say_failure(asked, HTTPStatus.BAD_GATEWAY, str(error), self._no_body_left(asked))
        finally:
            self._client.when_gone = None
            self._waiting = "client"

    async def _upstream_for(self, asked: Asked) -> UpstreamConnection:
        """The kept connection if it serves this request, else a new one. Raises TargetRefused, NotTrusted."""
        upstream = self._upstream
        if upstream is not None:
            if upstream.serves(asked.host, asked.port):
                # We read from it ourselves now; its end is reported by the read.
                upstream.stream.when_gone = None
                return upstream
            self._drop_upstream()
        # Taken out first: `connect` owns it from here on, also when it fails.
        target, self._target = self._target, None
        self._upstream = await connect(self._peer, asked.host, asked.port, self._kind, self._secure, target)
        return self._upstream

    async def _exchange(self, asked: Asked, upstream: UpstreamConnection) -> bool:
        if asked.length:
            # Runs as a task: a server may answer, and refuse, before it has read the whole body.
            sending = self._sending = await send(asked, upstream, self._incoming, self._timeout)
        else:
            sending = self._sending = SENT
            send_at_once(asked, upstream)
        upstream.used += 1
        try:
            self._waiting = "server"
            head, length = await self._answer_head(asked, upstream)
            self._waiting = "both"
            if head.status == 101:
                await self._switch(head, upstream)
                return False
            # If the request's body has not gone out whole, the rest of it would be read as the next request. So do not
            # keep the connection then.
            plan = upstream.plan(head, asked, length, asked.keep and sending.done)
        except (Malformed, ConnectionError) as error:
            return await self._no_answer(asked, upstream, sending, error)
        try:
            await self._pass_answer_on(upstream, plan, length)
        except (Malformed, ConnectionError) as error:
            if isinstance(error, Malformed):
                upstream.target.cut(f"its answer is not passed on: {error}")
            self._client.abort()  # a reset: half of an answer must not look like a whole one
            raise _Over from None
        if not sending.done:
            self._drop_upstream()
            return await self._linger()
        # The end of the connection marks the end of such a body, or the server has announced it.
        if length == UNTIL_END or head.minor == 0 or b"close" in head.fields.listed(b"connection"):
            self._drop_upstream()
        else:
            # While the connection is idle the server may close it; that must free its slot at once.
            upstream.stream.when_gone = self._drop_upstream
        return plan.keep

    async def _pass_answer_on(self, upstream: UpstreamConnection, plan: AnswerPlan, length: int) -> None:
        """Pass an answer's body on, masked if the host has secrets."""
        incoming = upstream.incoming
        # The common case of a small answer: one write, no task switch.
        if upstream.secrets is None and 0 <= length <= len(incoming.held) <= _AT_ONCE_BYTES:
            self._client.write(plan.head + incoming.held[:length])
            incoming.held = incoming.held[length:]
            return await self._client.drain()
        change = Change(upstream.secrets.masker(), plan.unpacker) if upstream.secrets is not None and length else None
        await pass_on(plan.head, HttpBody(incoming, length), self._client, plan.in_chunks, change, self._timeout)

    async def _answer_head(self, asked: Asked, upstream: UpstreamConnection) -> tuple[AnswerHead, int]:
        """Read heads up to the final answer. Interim ones (1xx) are passed on."""
        for interim in range(_INTERIM_AT_MOST):
            try:
                data = await upstream.incoming.head()
            except CutShort:
                raise
            except ConnectionError:
                data = b""
            if not data:
                # A server may close an idle connection in the moment in which we send the next request (RFC 9112,
                # 9.3.1). Only then is the request sent again: not on the first request of a connection, not after an
                # interim answer, and not if rules or a timeout closed it.
                fresh = interim or upstream.used == 1 or upstream.target.reason or self._timeout.over
                raise (ConnectionError if fresh else _NoAnswer)("the connection ended before an answer came")
            head, length = upstream.read_answer(data, asked.head.method)
            if head.status >= 200:
                return head, length
            if head.status == 101:
                # Without a request for it, a switch would let the server send bytes that are never inspected.
                if not asked.websocket or head.fields.listed(b"upgrade") != [b"websocket"]:
                    raise Malformed("it switched to another protocol, which the request did not ask for")
                return head, length
            # HTTP/1.0 does not know interim answers.
            if asked.head.minor == 1:
                self._client.write(interim_head(head, upstream.secrets))
                await self._client.drain()
            self._timeout.give(times.ANSWER_SECONDS)
        raise Malformed("it says again and again that an answer will come")

    async def _switch(self, head: AnswerHead, upstream: UpstreamConnection) -> None:
        """Relay a websocket. The timer stops here: a websocket may be silent for any time."""
        masked = MaskedFrames(upstream.secrets.masker()) if upstream.secrets is not None else None
        switching = switching_head(head, upstream.secrets)
        self._timeout.close()
        self._client.write(switching)
        try:
            await relay(self._incoming, upstream.incoming, masked)
        except (ConnectionError, Malformed):
            self._client.abort()
            raise _Over from None

    async def _no_answer(self, asked: Asked, upstream: UpstreamConnection, sending: Sending, error: Exception) -> bool:
        """Answer the client when the server did not. If the client itself caused it, raise what it caused instead."""
        # The body's error comes first: it aborted the connection to the server, so `error` is only its consequence.
        if sending.malformed is not None:
            raise sending.malformed
        if sending.client_gone:
            raise _Over
        if isinstance(error, _NoAnswer) and sending.done:
            raise error
        why = upstream.target.reason
        silent = f"nothing came for {times.ANSWER_SECONDS:.0f} seconds"
        told = f"its answer is not passed on: {error}" if isinstance(error, Malformed) else str(error)
        upstream.abort(why or (silent if self._timeout.over else told))
        self._upstream = None
        if self._timeout.over:
            return await self._say_failure(asked, HTTPStatus.GATEWAY_TIMEOUT, silent, False)
        if why is not None and self._peer.limits.exhausted:
            keep = sending.done and asked.keep
            answer = refusal(TargetRefused(why, "bytes"), asked.host, asked.port, asked.head.method, keep)
            return await self._say(answer, keep)
        if why is not None:  # the rules of the sandbox have changed
            return await self._say_failure(asked, HTTPStatus.FORBIDDEN, why, sending.done)
        return await self._say_failure(asked, HTTPStatus.BAD_GATEWAY, told, sending.done)

    def _no_body_left(self, asked: Asked) -> bool:
        """Whether the next request can be read after this one was refused. Drops a body that has arrived whole."""
        # A body that has not arrived would be read as the next request, so the connection cannot be kept then.
        if asked.length and 0 < asked.length <= len(self._incoming.held):
            self._incoming.held = self._incoming.held[asked.length :]
            return asked.keep
        return asked.keep and not asked.length

    async def _say_failure(self, asked: Asked, status: HTTPStatus, why: str, keep: bool) -> bool:
        keep = keep and asked.keep
        return await self._say(failure(status, asked.host, asked.port, why, asked.head.method, keep), keep)

    async def _say(self, answer: bytes, keep: bool) -> bool:
        if not keep:
            await self._say_last(answer)
            return False
        self._client.write(answer)
        await self._client.drain()
        return True

    async def _say_last(self, answer: bytes) -> None:
        self._client.write(answer)
        await self._linger()

    async def _linger(self) -> bool:
        """Read on for a while before closing.

        close(2) on a socket with unread bytes sends a reset, upon which the client's kernel discards our answer (RFC
        9112, 9.6).
        """
        if self._sending is not None:
            # The task reads from the same client and would take what we want to discard.
            self._sending.cancel()
        self._waiting = "client"
        self._timeout.give(times.LINGER_SECONDS)
        left = _LINGER_BYTES
        try:
            self._client.write_eof()
            while left > 0 and (data := await self._incoming.more()):
                left -= len(data)
        except ConnectionError:
            pass
        return False

    def _drop_upstream(self) -> None:
        """Close the connection to the server."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            # Or closing would call back here.
            upstream.stream.when_gone = None
            upstream.close()

    def _give_up(self) -> None:
        """The timeout: close whom we wait for.

        The coroutine that reads from it wakes up with a ConnectionError or an end.
        """
        if self._upstream is not None and self._waiting != "client":
            self._upstream.stream.abort()
        if self._waiting == "client":
            self._client.close()
        elif self._waiting == "both":
            # The client has half of an answer.
            self._client.abort()
