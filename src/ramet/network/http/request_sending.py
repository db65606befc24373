"""Sends a request to a server: at once if all of it is here, in a task of its own if the body is still arriving."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from ramet.network.http.bodies import Change, CutShort, HttpBody, Incoming, pass_on
from ramet.network.http.framing import CHUNKED
from ramet.network.http.heads import Malformed
from ramet.network.http.request_targets import Asked
from ramet.network.http.timeouts import ConnectionTimeout
from ramet.network.http.upstream import UpstreamConnection
from ramet.network.http.writing import request_fields, request_line

# A body in which placeholders are replaced is read whole up to this length, so that its new length can be sent in
# advance, which some servers insist on.
_WHOLE_BYTES = 1 << 20
# But no more than a few of the pieces that the sandbox may keep in our memory, which shrink with its connections.
_WHOLE_PIECES = 4
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


class Sending:
    """The rest of one request. The server may answer before it has received all of it."""

    def __init__(self, done: bool = False) -> None:
        self.done = done  # whether all of it was sent
        self.malformed: Malformed | None = None  # set if the client's body is malformed
        self.client_gone = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, sent: Coroutine[None, None, None], upstream: UpstreamConnection, client: Incoming) -> None:
        self._task = asyncio.create_task(self._watched(sent, upstream, client))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watched(self, sent: Coroutine[None, None, None], upstream: UpstreamConnection, client: Incoming) -> None:
        try:
            # Runs beside the coroutine that waits for the answer. Aborting the upstream wakes that one, which then
            # looks at `malformed` and `client_gone` for the reason.
            await sent
            self.done = True
        except Malformed as error:
            self.malformed = error
            upstream.abort("the body of a request was malformed")
        except ConnectionError as error:
            # A server that stops reading may already have answered, so do not abort: the other coroutine still waits
            # for that.
            self.client_gone = isinstance(error, CutShort) or client.stream.ended
            if self.client_gone:
                upstream.abort()


SENT = Sending(done=True)


def send_at_once(asked: Asked, upstream: UpstreamConnection) -> None:
    """Write a request that has no body."""
    upstream.stream.write(request_line(asked, upstream.secrets) + upstream.fields_of(asked))


async def send(asked: Asked, upstream: UpstreamConnection, client: Incoming, timeout: ConnectionTimeout) -> Sending:
    """Write a request with its body, or start to. Raises Malformed or CutShort for a body that is read in advance."""
    length, secrets = asked.length, upstream.secrets
    assert length
    body = HttpBody(client, length)
    expect = asked.head.minor == 1 and asked.head.fields.listed(b"expect") == [b"100-continue"]
    change: Change | None = None
    kind = asked.head.fields.values(b"content-type")
    replacer = secrets.body_replacer(kind[0] if kind else b"") if secrets is not None else None
    if replacer is not None:
        if 0 < length <= min(_WHOLE_BYTES, _WHOLE_PIECES * upstream.piece_bytes):
            # We answer "Expect" ourselves, because we need the whole body before the server hears of the request.
            if expect:
                client.stream.write(_GO_ON)
            whole = replacer.whole(await _all(body))
            fields = request_fields(asked, secrets, len(whole), False)
            upstream.stream.write(request_line(asked, secrets) + fields + whole)
            return SENT
        length, change = CHUNKED, Change(replacer)
    head = request_line(asked, secrets) + request_fields(asked, secrets, length, expect)
    if change is None and 0 < length <= len(client.held):
        upstream.stream.write(head + await body.next())
        return SENT
    sending = Sending()
    sending.begin(pass_on(head, body, upstream.stream, length == CHUNKED, change, timeout), upstream, client)
    return sending


async def _all(body: HttpBody) -> bytes:
    pieces: list[bytes] = []
    while not body.ended:
        pieces.append(await body.next())
    return b"".join(pieces)
