"""One engine call over HTTP, without I/O: what to send when, and what a broken connection means at each point.

    nothing sent         the connection could not be opened            retry any call; in the end Unreachable
    sent in part         the server cannot have understood it          retry if the whole request is still in memory
    sent, no answer      it may have been carried out, or may be yet   retry if the server knows it by its key (calls
                                                                       that make something); else OutcomeUnknown

A request is held until its answer is asked for, and then sent in one piece with its length. An upload that grows beyond
a limit becomes a chunked body, sent while it is read. During a long send we check whether the server has already
answered, as it does when it refuses the request: then we do not send the rest.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from concurrent.futures import Future
from enum import IntEnum
from os import urandom
from typing import NamedTuple

from ramet.errors import OutcomeUnknown, ProtocolError, RametError, Unreachable
from ramet.protocol import calls
from ramet.protocol.frames import TO_ENGINE, Frame, FrameDecoder, encode
from ramet.transport.http.connections import ServerConnection
from ramet.transport.http.messages import LAST_CHUNK, REFUSAL_BYTES_AT_MOST, HttpAnswer, chunk
from ramet.transport.http.refusals import refusal
from ramet.transport.http.server import Server
from ramet.transport.http.steps import Dial, Pause, SocketWait, Steps, Wait
from ramet.transport.http.tls import Tls

# Calls that the server remembers by an Idempotency-Key: a repeated one gets the same answer and is not executed again.
_REPEATABLE = calls.MAKING
_ATTEMPTS = 3
_PAUSES_SECONDS = (0.1, 0.5)
_KEPT_BYTES_AT_MOST = 1024 * 1024
# A request up to this size goes out in one write, with its head; a longer one in pieces, checking for an answer in
# between.
_SMALL_BYTES = 64 * 1024
_PIECE_BYTES = 256 * 1024


class Errand(NamedTuple):
    """Cleanup for a call that was given up: a request to send, and perhaps its result to close."""

    request: bytes
    key: str | None  # set if the request is the abandoned call again: close what it made


class _Cut(Exception):
    """The connection broke. Not an OSError, because some Ramet errors are OSErrors too."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause


class _Sent(IntEnum):
    NOTHING = 0
    PART = 1
    ALL = 2


class HttpCall:
    """The state of one call. A driver carries out the steps of ``send`` and ``receive`` on ``connection``."""

    def __init__(self, server: Server, *, key: str | None = None, urgent: bool = False) -> None:
        self._server = server
        self._key = key  # set for a request that is sent again on purpose
        self._urgent = urgent  # does not wait for a free place among the connections
        self._request: list[bytes] = []
        self._request_bytes = 0
        self._sent = _Sent.NOTHING
        self._tried = False  # some bytes were sent, in this attempt or an earlier one
        # True once the caller holds a handle to what the call made. Until then giving up must close it.
        self._taken = False
        self._chunked = False
        # True once an error was reported to the caller: `leave` then asks for no cleanup.
        self._failed = False
        # The place in the queue for a connection while we wait for it, and whether we hold a place.
        self._turn: Future[None] | None = None
        self._entered = False
        self._answer = HttpAnswer()
        self.connection: ServerConnection | None = None

    # Interface for drivers

    def send(self, data: bytes) -> Steps[None] | None:
        """Take a frame of the request. Return the steps to carry out now, or None."""
        if self._chunked:
            return self._upload(data)
        self._request.append(data)
        self._request_bytes += len(data)
        if len(self._request) == 1 or self._request_bytes <= _KEPT_BYTES_AT_MOST:
            return None
        return self._begin_upload()

    def receive(self) -> Steps[Frame]:
        """Return the next frame of the answer."""
        try:
            if self._sent is not _Sent.ALL:
                if not self._chunked:
                    return (yield from self._ask())
                yield from self._end_upload()
            return (yield from self._frame())
        except _Cut as cut:
            raise self._error(cut) from cut.cause
        except RametError:
            self._failed = True
            raise

    def taken(self) -> None:
        """Note that the caller holds a handle to what the call made."""
        self._taken = True

    def leave(self) -> Errand | None:
        """Let go of the connection.

        Return the cleanup to do if the call was given up before its answer, or before the caller took what it made.
        """
        untaken = not self._taken and bool(self._request) and self._request[0][calls.KIND_AT] in calls.MAKING
        over = self._answer.over and not untaken
        if self.connection is not None:
            if self._sent is _Sent.ALL and self._answer.reusable:
                self._server.connections.give_back(self.connection)
            else:
                self.connection.close()
        # `exit` in another thread may have given us the place just before; then `cancel` fails, and we must pass it on.
        if self._turn is not None and not self._turn.cancel():
            self._entered = True  # we had the place, but were no longer waiting for it
        if self._entered:
            self._server.connections.exit()
        return None if over or self._failed or not self._tried else self._errand()

    # Requests that are in memory as a whole

    def _ask(self) -> Steps[Frame]:
        """Send the request and return the first frame of the answer. Retry if that can do no harm."""
        body = self._request[0] if len(self._request) == 1 else b"".join(self._request)
        if self._key is None and body[calls.KIND_AT] in _REPEATABLE:
            self._key = urandom(16).hex()
        known = b"" if self._key is None else b"Idempotency-Key: %s\r\n" % self._key.encode("ascii")
        head = b"%sContent-Length: %d\r\n%s\r\n" % (self._server.head, len(body), known)
        attempt = 0
        while True:
            try:
                yield from self._connect()
                if len(body) <= _SMALL_BYTES:
                    yield from self._put(head + body)
                else:
                    yield from self._put_long(head + body)
                return (yield from self._frame())
            except _Cut as cut:
                attempt += 1
                if not self._repeatable(cut) or attempt >= _ATTEMPTS:
                    raise
            self._drop()
            yield Pause(_PAUSES_SECONDS[attempt - 1])

    def _repeatable(self, cut: _Cut) -> bool:
        if self._sent is _Sent.ALL:
            return self._key is not None
        # Retry only if the server is not there right now. Other failures to connect will not go away.
        return isinstance(cut.cause, ConnectionError)

    def _put(self, data: bytes) -> Steps[None]:
        """Send everything in one write."""
        connection = self._connection()
        self._sent = _Sent.PART
        self._tried = True
        try:
            yield data if connection.tls is None else connection.tls.encrypt(data)
        except OSError as error:
            raise _Cut(error) from None  # part of it was not sent, so the server cannot have the whole request
        self._sent = _Sent.ALL

    def _put_long(self, data: bytes) -> Steps[None]:
        """Send in pieces, and stop if the server answers early."""
        self._sent = _Sent.PART
        # Set before the first byte: if the caller gives up in the middle, `leave` must know that something was sent.
        self._tried = True
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            if (yield from self._put_watched(view[start : start + _PIECE_BYTES])):
                return
        self._sent = _Sent.ALL

    # Requests that are sent while they are read

    def _begin_upload(self) -> Steps[None]:
        self._chunked = True
        head = b"%sTransfer-Encoding: chunked\r\n\r\n" % self._server.head
        first = head + b"".join(map(chunk, self._request))
        attempt = 0
        try:
            while True:
                try:
                    yield from self._connect()
                    break
                except _Cut as cut:
                    attempt += 1
                    if not self._repeatable(cut) or attempt >= _ATTEMPTS:
                        raise
                self._drop()
                yield Pause(_PAUSES_SECONDS[attempt - 1])
        except _Cut as cut:
            raise self._error(cut) from cut.cause
        self._sent = _Sent.PART
        self._tried = True
        # The first frame stays: `_details` and `_errand` read its header. The rest is no longer needed, as it is not
        # sent again.
        del self._request[1:]
        yield from self._put_upload(first)

    def _upload(self, data: bytes) -> Steps[None]:
        yield from self._put_upload(chunk(data))

    def _end_upload(self) -> Steps[None]:
        yield from self._put_upload(LAST_CHUNK)
        self._sent = _Sent.ALL

    def _put_upload(self, data: bytes) -> Steps[None]:
        """Send a piece of an upload. Raise the server's error if it refuses the rest."""
        try:
            if (yield from self._put_watched(memoryview(data))):
                frame = yield from self._frame()
                if frame.kind != calls.ERROR:
                    raise ProtocolError("the server answered before it had the whole request")
                raise calls.read_error(frame.header)
        except _Cut as cut:
            raise self._error(cut) from cut.cause
        except RametError:
            self._failed = True
            raise

    def _put_watched(self, data: memoryview) -> Steps[bool]:
        """Send, unless the server answers first. Return True if it has."""
        connection = self._connection()
        view = data if connection.tls is None else memoryview(connection.tls.encrypt(bytes(data)))
        try:
            while True:
                sent: int = yield SocketWait(view)
                view = view[sent:]
                if not view:
                    return False
                yield from self._get_some()
                if self._answer.begun:
                    return True
        except OSError as error:
            # The server may have refused the request and closed the connection: its answer can still be read.
            cut = _Cut(error)
        try:
            yield from self._get()
        except (_Cut, ProtocolError):
            raise cut from None
        return True

    # The answer

    def _frame(self) -> Steps[Frame]:
        answer = self._answer
        while (frame := answer.next_frame()) is None:
            if answer.refused:
                yield from self._refused()
            if answer.complete:
                raise _Cut(ConnectionResetError("the connection closed in the middle of the answer"))
            yield from self._get()
        if frame.kind == calls.ERROR:
            self._failed = True  # nothing was made and nothing runs
        return frame

    def _refused(self) -> Steps[None]:
        answer = self._answer
        try:
            while not answer.complete and len(answer.refusal) < REFUSAL_BYTES_AT_MOST:
                yield from self._get()
        except _Cut:
            pass  # an answer without a length ends with its connection
        answer.over = answer.complete
        raise self._explained(refusal(answer, self._server.url))

    def _get(self) -> Steps[None]:
        while not (yield from self._get_some()):
            pass  # only TLS's own records arrived

    def _get_some(self) -> Steps[bool]:
        """Receive once and feed the answer. Return False if no application data arrived."""
        connection = self._connection()
        data: bytes | None
        try:
            data = yield self._answer.wanted_bytes
            if connection.tls is not None:
                data = connection.tls.decrypt(data or b"")
                if data is None:
                    return False
        except OSError as error:
            raise _Cut(error) from None
        if not data:
            raise _Cut(ConnectionResetError("the server closed the connection"))
        self._answer.feed(data)
        return True

    # The connection

    def _connection(self) -> ServerConnection:
        assert self.connection is not None
        return self.connection

    def _connect(self) -> Steps[None]:
        """Take an idle connection or open a new one."""
        connections = self._server.connections
        # Answers to tool calls skip the queue: the calls that occupy all places may wait for just this answer.
        if not self._entered and not self._urgent and self._request[0][calls.KIND_AT] != calls.TOOL_ANSWER:
            self._turn = connections.enter()
            if self._turn is not None:
                yield Wait(self._turn)
                self._turn = None
            self._entered = True
        self.connection = connections.take()
        try:
            connection = self.connection or (yield from self._open())
        except OSError as error:
            raise _Cut(error) from None
        connection.answer = self._answer

    def _open(self) -> Steps[ServerConnection]:
        server, route = self._server, self._server.route
        connection = ServerConnection((yield Dial(route.host, route.port)))
        # Set and registered before the handshake: `leave` closes it if the caller gives up, and a forked child closes
        # its copy.
        self.connection = connection
        server.connections.add(connection)
        if route.tunnel is not None:
            yield route.tunnel
            answer = HttpAnswer()
            while not answer.status:
                data: bytes = yield answer.wanted_bytes
                if not data:
                    raise ConnectionResetError("the proxy closed the connection")
                answer.feed(data)
            if not 200 <= answer.status < 300:
                raise Unreachable(f"cannot reach {server.way}: the proxy answered with status {answer.status}")
        if server.tls is not None:
            tls = Tls(server.tls, server.address.host)
            yield from tls.handshake()
            connection.tls = tls
        return connection

    def _drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self._answer = HttpAnswer()
        self._sent = _Sent.NOTHING

    # Errors

    def _error(self, cut: _Cut) -> RametError:
        """Return the error for a broken connection, by how much of the request had been sent.

        See the table at the top.
        """
        self._failed = True
        reason = _reason(cut.cause)
        if self._sent is _Sent.ALL:
            return self._explained(
                OutcomeUnknown(
                    f"the connection to {self._server.way} broke before the answer was complete ({reason}); "
                    "the call may have been executed"
                )
            )
        if self._sent is _Sent.PART and self._chunked:
            return OutcomeUnknown(
                f"the connection to {self._server.way} broke during an upload ({reason}); the file may be incomplete",
                details=self._details(),
            )
        return Unreachable(
            f"cannot reach {self._server.way}: {reason}",
            hint="nothing was executed; check that `ramet serve` is running there",
        )

    def _explained(self, error: RametError) -> RametError:
        """Add what the caller needs to ask for the outcome later."""
        if isinstance(error, OutcomeUnknown | ProtocolError):
            error.details.update(self._details())
            if "execution" in error.details and error.hint is None:
                error.hint = f'sandbox.result("{error.details["execution"]}") waits for its result'
        return error

    def _details(self) -> dict[str, object]:
        header = self._header()
        return {name: header[name] for name in ("sandbox", "execution") if isinstance(header.get(name), str)}

    def _header(self) -> Mapping[str, object]:
        return next(FrameDecoder(TO_ENGINE).feed(self._request[0])).header

    def _errand(self) -> Errand | None:
        kind = self._request[0][calls.KIND_AT]
        if kind == calls.RUN:
            return Errand(encode(calls.CANCEL, self._details()), None)
        if kind in _REPEATABLE:
            return Errand(b"".join(self._request), self._key)
        return None  # the closed connection tells the server everything it needs


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    return error.strerror or str(error)
