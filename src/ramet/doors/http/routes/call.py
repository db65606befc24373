"""``POST /v1/call``: one engine call, as frames. The SDK uses this route for everything.

The body holds the frames that an embedded caller would write to the engine, and the answer holds the frames of the
engine. Only the first frame is decoded here, and encoded anew with the caller as its owner. The frames after it, and
the answer, pass through as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from ramet.doors.http.access import admission, operator
from ramet.doors.http.access.audit_log import CALL_ACTIONS
from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.engine_link.frame_relay import HEARTBEAT, FrameScanner, WholeFrames
from ramet.doors.http.engine_link.link import EngineCall
from ramet.doors.http.requests import errors, idempotency
from ramet.doors.http.requests.disconnects import ask, ends_with_client, tells_of_departure
from ramet.doors.http.requests.errors import Headers
from ramet.doors.http.requests.exchange import ClientDisconnected, RequestExchange, Route, too_large
from ramet.doors.http.requests.idempotency import StoredAnswer
from ramet.doors.http.routes import creation, ports
from ramet.doors.http.routes.cell_answers import outcomes as cell_outcomes
from ramet.doors.http.routes.creation import EngineSaid
from ramet.errors import ProtocolError, RametError
from ramet.protocol import calls, fields
from ramet.protocol.frames import FROM_ENGINE, TO_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.tools.socket_frames import VALUE_BYTES_AT_MOST
from ramet.protocol.tools.specs import TOOLS_BYTES_AT_MOST
from ramet.protocol.values.value_bounds import INLINE_BYTES

PATH = "/v1/call"
_FRAMES: Headers = [(b"content-type", calls.FRAMES_TYPE.encode("ascii"))]

_PREFIX_BYTES = 10
_KIND_AT = 5
_LAST_OF_AN_UPLOAD = frozenset((calls.END, calls.ABORT))
_OF_AN_UPLOAD = frozenset((calls.CHUNK, calls.END, calls.ABORT))
# Decoding a header blocks the event loops of worker and engine, so only the kinds that need it may have a long one.
_HEADER_BYTES = 64 * 1024
_LARGE_HEADERS = {
    calls.CREATE: TO_ENGINE.header_bytes,
    calls.THAW: TO_ENGINE.header_bytes,
    calls.RESUME: TO_ENGINE.header_bytes,
    calls.NETWORK_CHANGE: 512 * 1024,
    calls.TERMINAL_OPEN: 3 * 1024 * 1024,
    calls.DIFF: 3 * 1024 * 1024,
}
_LARGEST_FRAME_BYTES = _PREFIX_BYTES + TO_ENGINE.header_bytes + TO_ENGINE.blob_bytes
# Kinds whose frames have a lower limit, and kinds that are followed by more frames.
_FRAME_BYTES = {
    calls.SET_VALUE: _PREFIX_BYTES + _HEADER_BYTES + INLINE_BYTES,
    calls.SET_TOOLS: _PREFIX_BYTES + _HEADER_BYTES + TOOLS_BYTES_AT_MOST,
    calls.TOOL_ANSWER: _PREFIX_BYTES + _HEADER_BYTES + calls.CHUNK_BYTES,
}
_BODY_BYTES = {
    calls.WRITE: None,  # limited by the sandbox's disk
    calls.IMPORT: None,  # limited by what the limits of the import allow
    calls.TOOL_ANSWER: VALUE_BYTES_AT_MOST + VALUE_BYTES_AT_MOST // 16,  # with the framing of its pieces
}


@api.operation(
    "call",
    "server",
    "One call of the engine, as frames; this is how the SDK talks",
    {
        200: api.answer(
            "The frames of the answer, as they come. After ten seconds of silence a HEARTBEAT frame.",
            api.BINARY,
            kind=calls.FRAMES_TYPE,
            headers={"Ramet-Execution": api.header("Execution")},
        ),
        **dict.fromkeys(
            (*api.USUAL_ERRORS, 422),
            api.answer(
                "The status of the error. The body is one ERROR frame if the engine was asked, JSON if it was not.",
                api.BINARY,
                kind=calls.FRAMES_TYPE,
                others=api.content(api.ref("Error")),
            ),
        ),
    },
    help="The layout of a frame is drawn in `src/ramet/protocol/frames.py`. Not meant for people.",
    body=api.body(api.BINARY, kind=calls.FRAMES_TYPE),
    parameters=[api.parameter("IdempotencyKey")],
    errors=(),
)
async def call(exchange: RequestExchange) -> None:
    """Answer the request with the engine's answer."""
    body = _Body(exchange)
    frame = await body.first_frame()
    kind = frame.kind
    if kind not in admission.ALLOWED:
        raise ProtocolError(f"a call of kind {kind} is not possible over HTTP")
    exchange.log.action = CALL_ACTIONS.get(kind)
    sandbox = frame.header.get("sandbox")
    if isinstance(sandbox, str):
        exchange.log.sandbox = sandbox[:64]
    if kind == calls.RUN:
        await _run(exchange, frame, body)
    elif kind in admission.MAKING:
        await body.end()
        await _make(exchange, frame)
    elif kind in (calls.WRITE, calls.TOOL_ANSWER, calls.IMPORT):
        await _upload(exchange, frame, body)
    else:
        await body.end()
        if kind == calls.SAVE:
            await _save(exchange, frame)
            return
        if kind in (calls.EXPOSE, calls.UNEXPOSE):
            await _expose(exchange, frame)
            return
        if exchange.operates and kind in operator.CALLS:
            await _operate(exchange, frame)
            return
        header = exchange.activity.header(exchange, frame.header)
        if kind in (calls.NETWORK_CHANGE, calls.REOPEN):
            header = creation.allowed(exchange, header)
        async with exchange.link.call() as engine:
            engine.send_nowait(encode(kind, header, frame.blob))
            await _relay(exchange, engine, _FRAMES, keep=False)


ROUTES: list[Route] = [("POST", PATH, call)]


# Cells


async def _run(exchange: RequestExchange, frame: Frame, body: _Body) -> None:
    await body.end()
    header = exchange.activity.header(exchange, frame.header)
    given = header.get("execution")
    execution = admission.new_execution_id() if given is None else admission.check_execution_id(given)
    header["execution"] = exchange.log.execution = execution
    keep = admission.check_on_disconnect(header.setdefault("on_disconnect", "keep")) == "keep"
    owner = exchange.owner
    exchange.activity.begin_cell(owner, exchange.limits)
    exchange.application.audit.begins(exchange.log)
    outcome = cell_outcomes.CANCELLED
    try:
        async with exchange.link.call() as engine:
            engine.send_nowait(encode(calls.RUN, header, frame.blob))
            headers = [*_FRAMES, (b"ramet-execution", execution.encode("ascii"))]
            if keep and header.get("tools") is True:
                with tells_of_departure(exchange, header):
                    last = await _pass_on(exchange, engine, headers)
            else:
                last = await _relay(exchange, engine, headers, keep)
            outcome = cell_outcomes.of_last_frame(last)
    finally:
        exchange.activity.end_cell(owner)
        exchange.log.outcome = outcome
        exchange.metrics.cell_ended(owner, str(header.get("language")), exchange.log.seconds, outcome)


# Making sandboxes


async def _make(exchange: RequestExchange, frame: Frame) -> None:
    key = exchange.header(b"idempotency-key")
    fingerprint = encode(frame.kind, frame.header, frame.blob)

    async def work() -> StoredAnswer:
        return StoredAnswer(200, calls.FRAMES_TYPE, await creation.make(exchange, creation.from_frame(exchange, frame)))

    task = asyncio.ensure_future(idempotency.once(exchange.records, exchange.owner, key, fingerprint, work))
    while not task.done():
        await asyncio.wait((task,), timeout=exchange.settings.heartbeat_seconds)
        if not task.done():
            if not exchange.started:
                await exchange.start(200, _FRAMES)
            await exchange.write(HEARTBEAT)
    try:
        stored = task.result()
    except EngineSaid as refusal:
        await _tell(exchange, refusal.error)
    except RametError as error:
        if not exchange.started:
            raise  # the engine was not called
        await _tell(exchange, error)
    else:
        if exchange.started:
            await exchange.write(stored.body, more=False)
        else:
            await exchange.respond(stored.status, _FRAMES, stored.body)


async def _tell(exchange: RequestExchange, error: RametError, headers: Headers = _FRAMES) -> bytes:
    """Send an error as a frame. If nothing was sent before, the answer gets the error's own status."""
    error = exchange.application.explain(exchange, error)
    exchange.log.error = error.code
    data = calls.encode_error(error)
    if exchange.started:
        await exchange.write(data, more=False)
    else:
        status = errors.status_of(error)
        await exchange.respond(status, [*headers, *errors.retry_headers(status)], data)
    return data


async def _save(exchange: RequestExchange, frame: Frame) -> None:
    header = creation.allowed(exchange, exchange.activity.header(exchange, frame.header))
    answer = await ask(exchange, calls.SAVE, header)
    await exchange.respond(200, _FRAMES, encode(answer.kind, answer.header))


# Calls of an operator on the sandboxes of all keys


async def _operate(exchange: RequestExchange, frame: Frame) -> None:
    if frame.kind == calls.SANDBOXES:
        own = await ask(exchange, frame.kind, exchange.activity.header(exchange, frame.header))
        # Sandboxes of all keys; snapshots and templates of the operator's own key only.
        told: Mapping[str, object] = {**own.header, "sandboxes": await operator.rows(exchange)}
    else:
        operator.note(exchange, frame.header.get("sandbox"))
        answer = await ask(exchange, frame.kind, exchange.activity.seeing_header(exchange, frame.header))
        told = answer.header
    await exchange.respond(200, _FRAMES, encode(calls.ANSWER, told))


# Ports


async def _expose(exchange: RequestExchange, frame: Frame) -> None:
    """Expose a port as a URL of this server, in place of what an engine does on its own machine."""
    sandbox_id = admission.check_sandbox_id(fields.text(frame.header, "sandbox"))
    port = fields.whole(frame.header, "port")
    told: dict[str, object] = {}
    if frame.kind == calls.EXPOSE:
        exposure = await ports.expose(exchange, sandbox_id, port)
        told = {"url": ports.path_of(exposure), "token": exposure.token, "port": port}
    else:
        await ports.unexpose(exchange, sandbox_id, port)
    await exchange.respond(200, _FRAMES, encode(calls.ANSWER, told))


# Files, and return values of tools


async def _upload(exchange: RequestExchange, frame: Frame, body: _Body) -> None:
    """Pass on an upload of any size, piece by piece, no faster than the engine takes it."""
    header = exchange.activity.header(exchange, frame.header)
    if frame.kind == calls.IMPORT:
        options = SandboxOptions.read({name: value for name, value in frame.header.items() if name != "more"})
        made = exchange.application.creation.importing(options, exchange.owner)
        header = {**creation.allowed(exchange, made), "more": True}
    header.pop("quiet", None)  # a quiet call gets no frame back, and the request would never be answered
    async with exchange.link.call() as engine:
        engine.send_nowait(encode(frame.kind, header, frame.blob))
        if header.get("more") is True:
            pieces = FrameScanner(last=_LAST_OF_AN_UPLOAD, allowed=_OF_AN_UPLOAD)
            async for data in body.rest():
                pieces.feed(data)
                if engine.answer.final:
                    break  # the engine refused the upload; discard the rest
                await engine.send(data)
            if not pieces.final and not engine.answer.final:
                await engine.flush()  # otherwise the call could be dropped before the engine has seen what was aborted
                raise ProtocolError("the body ended before what is in it did")
        else:
            await body.end()
        await _relay(exchange, engine, _FRAMES, keep=False)


# The answer


async def _relay(exchange: RequestExchange, engine: EngineCall, headers: Headers, keep: bool) -> bytes:
    """Pass the answer on and return its last frame. ``keep``: the call goes on when the client disconnects."""
    if keep:
        return await _pass_on(exchange, engine, headers)
    with ends_with_client(exchange, engine):
        return await _pass_on(exchange, engine, headers)


async def _pass_on(exchange: RequestExchange, engine: EngineCall, headers: Headers) -> bytes:
    heartbeat, wake = exchange.application.heartbeat, engine.wake
    heartbeat.heard(wake)
    try:
        data = await engine.take()
        if engine.answer.first_kind == calls.ERROR:
            return await _refused(exchange, engine, headers, data)
        if engine.over:
            # The usual case: a short answer that came in one piece.
            await exchange.respond(200, headers, data)
            return data[-engine.answer.frame_bytes :]
        return await _stream(exchange, engine, headers, data)
    finally:
        heartbeat.forget(wake)


async def _refused(exchange: RequestExchange, engine: EngineCall, headers: Headers, data: bytes) -> bytes:
    while not engine.over:
        data += await engine.take()
    return await _tell(exchange, calls.read_error(next(FrameDecoder(FROM_ENGINE).feed(data)).header), headers)


async def _stream(exchange: RequestExchange, engine: EngineCall, headers: Headers, data: bytes) -> bytes:
    heartbeat, wake, whole = exchange.application.heartbeat, engine.wake, WholeFrames(engine.answer)
    started = False
    try:
        while True:
            if data:
                heartbeat.heard(wake)
                data = whole.feed(data)
            elif whole.at_border:
                data = HEARTBEAT
            over = engine.over
            if not started:
                started = True
                await exchange.begin(200, headers, data, more=not over)
            elif data or over:
                await exchange.write(data, more=not over)
            if over:
                return data[-engine.answer.frame_bytes :]
            data = await engine.take()
    except RametError as error:
        if not whole.at_border:
            raise  # nothing can be said in the middle of a frame; aborting the connection shows the error
        data = calls.encode_error(error)
        await exchange.write(data, more=False)
        return data


# The request


class _Body:
    """The body of the request: one frame, and for uploads the frames after it."""

    def __init__(self, exchange: RequestExchange) -> None:
        self._exchange = exchange
        self._limit_bytes: int | None = _LARGEST_FRAME_BYTES
        self._taken = 0
        self._more = True
        self._rest = b""

    async def first_frame(self) -> Frame:
        data = await self._piece()
        while len(data) < _PREFIX_BYTES:
            data += await self._piece_or_refuse()
        length = 4 + int.from_bytes(data[:4], "little")
        kind = data[_KIND_AT]
        frame_bytes = _FRAME_BYTES.get(kind, _LARGEST_FRAME_BYTES)
        if length > frame_bytes:
            raise too_large(frame_bytes)
        header_bytes = _LARGE_HEADERS.get(kind, _HEADER_BYTES)
        if int.from_bytes(data[6:_PREFIX_BYTES], "little") > header_bytes:
            raise ProtocolError(f"the header of such a frame may have at most {header_bytes} bytes")
        self._limit_bytes = _BODY_BYTES.get(kind, frame_bytes)
        if self._limit_bytes is not None:
            self._exchange.check_length(self._limit_bytes)
        if len(data) < length:
            parts = bytearray(data)
            while len(parts) < length:
                piece = await self._piece_or_refuse()
                self._exchange.hold(len(piece))
                parts += piece
            data = bytes(parts)
        if len(data) > length:
            self._rest = data[length:]
            data = data[:length]
        frame = next(FrameDecoder(TO_ENGINE).feed(data), None)
        if frame is None:
            raise ProtocolError("the body is not a frame")
        return frame

    async def end(self) -> None:
        """Raise ProtocolError if anything follows."""
        while not self._rest and self._more:
            self._rest = await self._piece()
        if self._rest:
            raise ProtocolError("something follows the request in the body")

    async def rest(self) -> AsyncIterator[bytes]:
        """Everything after the first frame, as it comes."""
        if self._rest:
            yield self._rest
        while self._more:
            piece = await self._piece()
            if piece:
                yield piece

    async def _piece_or_refuse(self) -> bytes:
        if not self._more:
            raise ProtocolError("the body ended in the middle of a frame")
        return await self._piece()

    async def _piece(self) -> bytes:
        message = await self._exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        data: bytes = message.get("body", b"")
        self._more = message.get("more_body", False)
        self._taken += len(data)
        self._exchange.log.received_bytes += len(data)
        if self._limit_bytes is not None and self._taken > self._limit_bytes:
            raise too_large(self._limit_bytes)
        return data
