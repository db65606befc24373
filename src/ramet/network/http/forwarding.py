"""Serves HTTP/1 to a program in a sandbox: its requests one after the other, each decided on by itself.

client ── head ──▶ read strictly ──▶ asked for what? ──▶ reach, or the connection of the last request ──▶ head, anew
client ◀── head, anew ◀── read strictly ◀── server                           bodies go both ways as fast as they can
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from ramet.network.guests import Guest
from ramet.network.http import patience as times
from ramet.network.http.asking import Asked, Connect, Repeated, asked_for, read_asked
from ramet.network.http.bodies import Body, Change, CutShort, Incoming, pass_on
from ramet.network.http.frames import MaskedFrames
from ramet.network.http.framing import UNTIL_END
from ramet.network.http.heads import AnswerHead, Malformed, check_beginning, read_request
from ramet.network.http.patience import Patience
from ramet.network.http.refusing import failure, malformed, refusal
from ramet.network.http.sending import SENT, Sending, send, send_at_once
from ramet.network.http.upgrading import relay
from ramet.network.http.upstream import NotTrusted, Upstream, connect
from ramet.network.http.writing import AnswerPlan, interim_head, switching_head
from ramet.network.reaching.targets import Refused, Target
from ramet.network.streams.stream import Stream
from ramet.protocol.network import Kind

_INTERIM_AT_MOST = 100
# Sent again when a kept connection turns out to have been closed meanwhile: RFC 9110, 9.2.2.
_SENT_AGAIN = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"PROPFIND", b"REPORT"})
_LINGER_BYTES = 1 << 20
_AT_ONCE_BYTES = 64 * 1024


async def forward(
    client: Stream, guest: Guest, fixed: tuple[str, int] | None, secure: bool, target: Target | None = None
) -> Connect | None:
    """Serve a client until its connection ends, or until it asks for a tunnel: then it is the caller's again.

    ``fixed``: the host and port that this connection is for, in a tunnel. ``secure``: the server is spoken to in TLS.
    ``target``: a connection to it that was made already; it is ours now.
    """
    connection = _Connection(client, guest, fixed, secure, target)
    try:
        return await connection.serve()
    finally:
        connection.close()


class _Over(Exception):
    """The client's connection is over; there is nobody to be told why."""


class _NoAnswer(ConnectionError):
    """A server has ended the connection without a word."""


class _Connection:
    def __init__(
        self, client: Stream, guest: Guest, fixed: tuple[str, int] | None, secure: bool, target: Target | None
    ) -> None:
        self._client = client
        self._incoming = Incoming(client)
        self._guest = guest
        self._fixed = fixed
        self._secure = secure
        self._target = target
        self._kind: Kind = target.entry.kind if target is not None else "http"
        self._upstream: Upstream | None = None
        self._sending: Sending | None = None
        # Who is waited for: the client's next word, the server's answer, or both while it is passed on.
        self._waiting: Literal["client", "server", "both"] = "client"
        self._patience = Patience(self._give_up)
        self._handed_over = False
        self._last: Repeated | None = None
        self._beginning = b""  # of a head that is not all here

    async def serve(self) -> Connect | None:
        head = b""
        try:
            while True:
                self._patience.give(times.IDLE_SECONDS)
                head = b""
                head = await self._incoming.head(self._check_beginning, self._patience)
                if not head:
                    return None
                asked = self._read(head)
                if isinstance(asked, Connect):
                    self._client.unread(self._incoming.held)
                    self._handed_over = True
                    return asked
                if not await self._serve_one(asked):
                    return None
        except Malformed as error:
            self._tell_malformed(head or self._beginning, str(error))
            await self._say_last(malformed(str(error)))
        except (_Over, ConnectionError):
            pass  # there is nobody left to be told
        return None

    def _check_beginning(self, data: bytes, seen: int) -> None:
        self._beginning = data
        check_beginning(data, seen)

    def _tell_malformed(self, head: bytes, why: str) -> None:
        """The log tells of what was refused: as of the connection that was made for it, or as of one by itself."""
        if self._sending is not None and self._sending.malformed is not None:
            return  # the connection that a part of it went over has ended with this reason
        reason = f"this request is not passed on: {why}"
        target = self._target if self._upstream is None else self._upstream.target
        if target is not None and not target.entry.sent:
            return target.refuse(reason)
        host, port = self._fixed or asked_for(head)
        self._guest.entries.tried(self._kind, host, port, False, None, reason)

    def _read(self, head: bytes) -> Asked | Connect:
        again = self._last.read(head) if self._last is not None else None
        if again is not None:
            return again
        asked = read_asked(read_request(head), self._fixed, self._secure)
        self._last = Repeated(head, asked) if isinstance(asked, Asked) else None
        return asked

    def close(self) -> None:
        self._patience.close()
        self._client.when_gone = None
        if self._sending is not None:
            self._sending.cancel()
        self._drop_upstream()
        if self._target is not None:
            self._target.close()
        if not self._handed_over:
            self._client.close()

    async def _serve_one(self, asked: Asked) -> bool:
        """False: nothing follows on this connection."""
        self._patience.give(times.ANSWER_SECONDS)
        self._client.when_gone = lambda: self._patience.shorten(times.GONE_SECONDS)
        if self._client.ended:
            self._patience.shorten(times.GONE_SECONDS)
        again = asked.head.method in _SENT_AGAIN and not asked.length
        try:
            while True:
                upstream = await self._upstream_for(asked)
                try:
                    return await self._exchange(asked, upstream)
                except _NoAnswer:
                    self._drop_upstream()
                    if not again:  # as if the server had hung up on the client itself, which then decides
                        raise _Over from None
                    again = False
        except Refused as refused:
            keep = self._no_body_left(asked)
            return await self._say(refusal(refused, asked.host, asked.port, asked.head.method, keep), keep)
        except NotTrusted as error:
            return await self._say_failure(asked, HTTPStatus.BAD_GATEWAY, str(error), self._no_body_left(asked))
        finally:
            self._client.when_gone = None
            self._waiting = "client"

    async def _upstream_for(self, asked: Asked) -> Upstream:
        upstream = self._upstream
        if upstream is not None:
            if upstream.serves(asked.host, asked.port):
                upstream.stream.when_gone = None
                return upstream
            self._drop_upstream()
        target, self._target = self._target, None
        self._upstream = await connect(self._guest, asked.host, asked.port, self._kind, self._secure, target)
        return self._upstream

    async def _exchange(self, asked: Asked, upstream: Upstream) -> bool:
        if asked.length:
            sending = self._sending = await send(asked, upstream, self._incoming, self._patience)
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
            plan = upstream.plan(head, asked, length, asked.keep and sending.done)
        except (Malformed, ConnectionError) as error:
            return await self._no_answer(asked, upstream, sending, error)
        try:
            await self._pass_answer_on(upstream, plan, length)
        except (Malformed, ConnectionError) as error:
            if isinstance(error, Malformed):
                upstream.target.cut(f"its answer is not passed on: {error}")
            self._client.abort()  # half of an answer must not look like a whole one
            raise _Over from None
        if not sending.done:
            self._drop_upstream()
            return await self._linger()
        if length == UNTIL_END or head.minor == 0 or b"close" in head.fields.listed(b"connection"):
            self._drop_upstream()
        else:
            upstream.stream.when_gone = self._drop_upstream
        return plan.keep

    async def _pass_answer_on(self, upstream: Upstream, plan: AnswerPlan, length: int) -> None:
        incoming = upstream.incoming
        if upstream.secrets is None and 0 <= length <= len(incoming.held) <= _AT_ONCE_BYTES:
            self._client.write(plan.head + incoming.held[:length])
            incoming.held = incoming.held[length:]
            return await self._client.drain()
        change = Change(upstream.secrets.masker(), plan.unpacker) if upstream.secrets is not None and length else None
        await pass_on(plan.head, Body(incoming, length), self._client, plan.in_chunks, change, self._patience)

    async def _answer_head(self, asked: Asked, upstream: Upstream) -> tuple[AnswerHead, int]:
        for interim in range(_INTERIM_AT_MOST):
            try:
                data = await upstream.incoming.head()
            except CutShort:
                raise
            except ConnectionError:
                data = b""
            if not data:
                fresh = interim or upstream.used == 1 or upstream.target.reason or self._patience.over
                raise (ConnectionError if fresh else _NoAnswer)("the connection ended before an answer came")
            head, length = upstream.read_answer(data, asked.head.method)
            if head.status >= 200:
                return head, length
            if head.status == 101:
                if not asked.websocket or head.fields.listed(b"upgrade") != [b"websocket"]:
                    raise Malformed("it switched to another protocol, which the request did not ask for")
                return head, length
            if asked.head.minor == 1:
                self._client.write(interim_head(head, upstream.secrets))
                await self._client.drain()
            self._patience.give(times.ANSWER_SECONDS)
        raise Malformed("it says again and again that an answer will come")

    async def _switch(self, head: AnswerHead, upstream: Upstream) -> None:
        """The patience ends here: nobody knows how long the two sides of a websocket have nothing to say."""
        masked = MaskedFrames(upstream.secrets.masker()) if upstream.secrets is not None else None
        switching = switching_head(head, upstream.secrets)
        self._patience.close()
        self._client.write(switching)
        try:
            await relay(self._incoming, upstream.incoming, masked)
        except (ConnectionError, Malformed):
            self._client.abort()
            raise _Over from None

    async def _no_answer(self, asked: Asked, upstream: Upstream, sending: Sending, error: Exception) -> bool:
        """Tell the client what a server has done instead of answering, if it was the server."""
        if sending.malformed is not None:
            raise sending.malformed
        if sending.client_gone:
            raise _Over
        if isinstance(error, _NoAnswer) and sending.done:
            raise error
        why = upstream.target.reason
        silent = f"nothing came for {times.ANSWER_SECONDS:.0f} seconds"
        told = f"its answer is not passed on: {error}" if isinstance(error, Malformed) else str(error)
        upstream.abort(why or (silent if self._patience.over else told))
        self._upstream = None
        if self._patience.over:
            return await self._say_failure(asked, HTTPStatus.GATEWAY_TIMEOUT, silent, False)
        if why is not None and self._guest.limits.exhausted:
            keep = sending.done and asked.keep
            answer = refusal(Refused(why, "bytes"), asked.host, asked.port, asked.head.method, keep)
            return await self._say(answer, keep)
        if why is not None:  # the rules of the sandbox have changed
            return await self._say_failure(asked, HTTPStatus.FORBIDDEN, why, sending.done)
        return await self._say_failure(asked, HTTPStatus.BAD_GATEWAY, told, sending.done)

    def _no_body_left(self, asked: Asked) -> bool:
        """Whether the next request can be read after this one was refused; a body that is here is thrown away."""
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
        """Read on for a while: closing on bytes that nobody has read would take our answer back with a reset."""
        if self._sending is not None:
            self._sending.cancel()
        self._waiting = "client"
        self._patience.give(times.LINGER_SECONDS)
        left = _LINGER_BYTES
        try:
            self._client.write_eof()
            while left > 0 and (data := await self._incoming.more()):
                left -= len(data)
        except ConnectionError:
            pass
        return False

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.stream.when_gone = None
            upstream.close()

    def _give_up(self) -> None:
        if self._upstream is not None and self._waiting != "client":
            self._upstream.stream.abort()
        if self._waiting == "client":
            self._client.close()
        elif self._waiting == "both":
            self._client.abort()
