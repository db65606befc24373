"""Cells over HTTP in three formats, and the routes to look them up, cancel and replay them.

lines: one event for each line of output, as the published client expects. chunks: exact pieces of output, results with
their MIME forms, and the whole result at the end. json: one JSON object when the cell has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext

from ramet.doors.http.access import admission
from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.engine_link.link import EngineCall
from ramet.doors.http.requests.cell_body import CellBody
from ramet.doors.http.requests.disconnects import ask, ends_with_client
from ramet.doors.http.requests.errors import Headers
from ramet.doors.http.requests.exchange import JSON, RequestExchange, Route
from ramet.doors.http.requests.json_answers import answer_json
from ramet.doors.http.routes.cell_answers import outcomes as cell_outcomes
from ramet.doors.http.routes.cell_answers.formats import ChunkFormat, Format, LineFormat, to_json
from ramet.doors.http.routes.cell_answers.line_events import STREAMS, LineCutter
from ramet.errors import ProtocolError, RametError
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import must
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.values.results import RichResult, json_forms

_NDJSON: Headers = [(b"content-type", b"application/x-ndjson")]
_REPLAYED_EVENTS = 1000
_SHOWN = frozenset((calls.OUTPUT, calls.RICH, calls.CLEARED))


@api.operation(
    "exec",
    "cells",
    "Run a cell",
    {
        200: api.answer(
            (
                "Events, a line each, as they happen; an empty line after ten seconds of silence. With "
                '`"format": "json"` one object in the end.'
            ),
            api.ref("Event"),
            {"type": "stdout", "data": "42", "seq": 0, "ts": 1776510028036},
            kind=api.LINES,
            headers={"Ramet-Execution": api.header("Execution")},
            others={**api.content(api.ref("Result"))},
        )
    },
    body=api.body(api.ref("Cell"), {"code": "print(6 * 7)", "format": "json"}),
)
async def _execute(exchange: RequestExchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/exec"""
    asked = (await exchange.read_fields(exchange.settings.code_body_bytes)).options(CellBody)
    code = checks.check_code(asked.code)
    execution = asked.execution_id or admission.new_execution_id()
    exchange.log.execution = execution
    header = {
        "sandbox": sandbox_id,
        "language": asked.language,
        "timeout": asked.timeout,
        "stream": asked.format != "json",
        "execution": execution,
        "on_disconnect": asked.on_disconnect,
        "owner": exchange.owner,
    }
    marked = [(b"ramet-execution", execution.encode("ascii"))]
    owner, outcome = exchange.owner, cell_outcomes.CANCELLED
    exchange.activity.begin_cell(owner, exchange.limits)
    exchange.application.audit.begins(exchange.log)
    try:
        async with exchange.link.call() as engine:
            engine.send_nowait(encode(calls.RUN, header, code))
            with nullcontext() if asked.on_disconnect == "keep" else ends_with_client(exchange, engine):
                if asked.format == "json":
                    outcome = await _in_one(exchange, engine, execution, marked)
                else:
                    written: Format = LineFormat() if asked.format == "lines" else ChunkFormat()
                    outcome = await _stream(exchange, engine, written, execution, [*_NDJSON, *marked])
    except RametError as error:
        outcome = cell_outcomes.of_error(error)
        raise
    finally:
        exchange.activity.end_cell(owner)
        exchange.log.outcome = outcome
        exchange.metrics.cell_ended(owner, asked.language, exchange.log.seconds, outcome)


async def _in_one(exchange: RequestExchange, engine: EngineCall, execution: str, marked: Headers) -> str:
    body, outcome = await _gathered(exchange, engine, execution)
    await exchange.respond(200, [*JSON, *marked], body)
    return outcome


async def _gathered(exchange: RequestExchange, engine: EngineCall, execution: str) -> tuple[bytes, str]:
    """The body and the outcome of a cell.

    A function of its own, so that the frames are freed while a slow client reads the body.
    """
    pieces = []
    async for piece, _ in engine.raw():
        exchange.hold(len(piece))
        pieces.append(piece)
    data = b"".join(pieces)
    frame = _final(next(FrameDecoder(FROM_ENGINE).feed(data)))
    answer = {"execution_id": execution, **calls.read_result(frame).to_dict()}
    return to_json(answer), cell_outcomes.of_result(frame.header)


async def _stream(
    exchange: RequestExchange, engine: EngineCall, written: Format, execution: str, headers: Headers
) -> str:
    """Write events as they come, and return the outcome. The first frame decides between a stream and an error."""
    heartbeat, wake = exchange.application.heartbeat, engine.wake
    decoder = FrameDecoder(FROM_ENGINE)
    outcome = cell_outcomes.CANCELLED
    try:
        while True:
            heartbeat.heard(wake)
            data = await engine.take()
            pieces = [] if data else [b"\n"]
            for frame in decoder.feed(data):
                if frame.kind == calls.OUTPUT:
                    pieces.append(written.output(_stream_of(frame), frame.blob))
                elif frame.kind == calls.RICH:
                    pieces.append(written.rich(frame))
                elif frame.kind == calls.CLEARED:
                    pieces.append(written.cleared(frame))
                elif frame.kind == calls.RESULT:
                    pieces.append(written.result(frame, execution))
                    outcome = cell_outcomes.of_result(frame.header)
                else:
                    _final(frame)
            piece, over = b"".join(pieces), engine.over
            if not exchange.started and over:
                await exchange.respond(200, headers, piece)
            elif not exchange.started:
                await exchange.begin(200, headers, piece)
            elif piece or over:
                await exchange.write(piece, more=not over)
            if over:
                return outcome
    except RametError as error:
        if not exchange.started:
            raise
        await exchange.write(written.error(error), more=False)
        return outcome
    finally:
        heartbeat.forget(wake)


def _stream_of(frame: Frame) -> int:
    stream = fields.natural(frame.header, "stream")
    if stream >= len(STREAMS):
        raise ProtocolError(f"output of a stream {stream}, which does not exist")
    return stream


def _final(frame: Frame) -> Frame:
    if frame.kind == calls.ERROR:
        raise calls.read_error(frame.header)
    if frame.kind not in calls.FINAL:
        raise ProtocolError(f"the engine answered with a frame of kind {frame.kind}")
    return frame


# Executions by their id


@api.operation(
    "execution",
    "cells",
    "A cell by its id: its state, and its result once it has one",
    {
        200: api.answer(
            "What is known of it.",
            api.record(
                {
                    "execution_id": api.text(),
                    "state": api.choice("waiting", "running", "finished"),
                    "result": api.ref("Result"),
                    "dropped_bytes": api.whole("Of its output, no longer kept."),
                },
                required=("execution_id", "state"),
            ),
            {"execution_id": api.EXECUTION_ID, "state": "running"},
        )
    },
    parameters=[api.query("wait", "Answer when it has ended.", api.flag())],
)
async def _execution(exchange: RequestExchange, sandbox_id: str, execution_id: str) -> None:
    """GET /v1/sandboxes/{sandbox_id}/executions/{execution_id}"""
    execution = admission.check_known_execution(execution_id)
    wait = _wait(exchange.request.query_params)
    await exchange.respond(200, JSON, await _fetched(exchange, sandbox_id, execution, wait))


async def _fetched(exchange: RequestExchange, sandbox_id: str, execution: str, wait: bool) -> bytes:
    header = exchange.activity.header(exchange, {"sandbox": sandbox_id, "execution": execution, "wait": wait})
    printed = (bytearray(), bytearray())
    shown: list[RichResult] = []
    dropped_bytes = 0
    clears_next = False
    async for frame in _frames(exchange, calls.FETCH, header):
        if frame.kind == calls.CLEARED and fields.flag(frame.header, "wait"):
            clears_next = True
            continue
        if frame.kind == calls.CLEARED or (clears_next and frame.kind in _SHOWN):
            printed, clears_next = (bytearray(), bytearray()), False
            shown.clear()
        if frame.kind == calls.OUTPUT:
            printed[_stream_of(frame)].extend(frame.blob)
            dropped_bytes += fields.optional_whole(frame.header, "dropped_bytes") or 0
        elif frame.kind == calls.RICH:
            shown.append(calls.read_rich(frame.header, frame.blob))
        elif frame.kind == calls.ANSWER:
            return to_json({"execution_id": execution, "state": fields.text(frame.header, "state")})
    result = calls.read_result(frame)
    answer = result.to_dict()
    for name, text in zip(STREAMS, printed, strict=True):
        answer[name] = text.decode("utf-8", "replace") + str(answer[name])
    answer["results"] = [{"what": one.what, "data": json_forms(one)} for one in (*shown, *result.results)]
    answer["value"] = next((one.text for one in reversed(shown) if one.what == "value"), result.value)
    more = {"dropped_bytes": dropped_bytes} if dropped_bytes else {}
    return to_json({"execution_id": execution, "state": "finished", "result": answer, **more})


def _wait(query: Mapping[str, str]) -> bool:
    value = query.get("wait", "false").lower()
    if value not in ("", "0", "1", "true", "false"):
        raise must("wait", "be true or false", value)
    return value in ("", "1", "true")


@api.operation(
    "cancel",
    "cells",
    "Drop a waiting cell, or interrupt a running one",
    {
        200: api.answer(
            "Whether there was anything to cancel.", api.record({"cancelled": api.flag()}), {"cancelled": True}
        )
    },
    body=api.EMPTY_BODY,
)
async def _cancel(exchange: RequestExchange, sandbox_id: str, execution_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/executions/{execution_id}/cancel"""
    (await exchange.read_fields()).done()
    execution = admission.check_known_execution(execution_id)
    header = exchange.activity.header(exchange, {"sandbox": sandbox_id, "execution": execution})
    answer = await ask(exchange, calls.CANCEL, header)
    await answer_json(exchange, {"cancelled": fields.flag(answer.header, "cancelled")})


@api.operation(
    "interrupt",
    "cells",
    "Interrupt the running cell, as Ctrl-C does",
    {200: api.answer("Whether one was running.", api.record({"interrupted": api.flag()}), {"interrupted": True})},
    body=api.EMPTY_BODY,
)
async def _interrupt(exchange: RequestExchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/interrupt"""
    (await exchange.read_fields()).done()
    answer = await ask(exchange, calls.INTERRUPT, exchange.activity.header(exchange, {"sandbox": sandbox_id}))
    await answer_json(exchange, {"interrupted": fields.flag(answer.header, "interrupted")})


@api.operation(
    "replay",
    "cells",
    "The last 1000 events of all cells",
    {
        200: api.answer(
            "As `exec` gave them.",
            api.ref("Event"),
            {"type": "stdout", "data": "42", "seq": 0, "ts": 1776510028036},
            kind=api.LINES,
        )
    },
)
async def _replay(exchange: RequestExchange, sandbox_id: str) -> None:
    """GET /v1/sandboxes/{sandbox_id}/replay: the last 1000 events, as lines."""
    header = exchange.activity.header(exchange, {"sandbox": sandbox_id})
    events: deque[tuple[str, object, int]] = deque(maxlen=_REPLAYED_EVENTS)
    cutters = (LineCutter(), LineCutter())
    last_ms = 0
    async for frame in _frames(exchange, calls.REPLAY, header):
        if frame.kind == calls.OUTPUT:
            stream, last_ms = _stream_of(frame), fields.whole(frame.header, "ts_ms")
            events.extend((STREAMS[stream], line, last_ms) for line in cutters[stream].feed(frame.blob))
        elif frame.kind == calls.EXITED:
            last_ms = fields.whole(frame.header, "ts_ms")
            events.extend(_unfinished(cutters, last_ms))
            events.append(("exit", fields.whole(frame.header, "code"), last_ms))
    events.extend(_unfinished(cutters, last_ms))
    written = [
        to_json({"type": kind, "data": data, "seq": number, "ts": ts_ms})
        for number, (kind, data, ts_ms) in enumerate(events)
    ]
    await exchange.respond(200, _NDJSON, b"\n".join([*written, b""]) if written else b"")


def _unfinished(cutters: tuple[LineCutter, LineCutter], ts_ms: int) -> list[tuple[str, object, int]]:
    return [(name, line, ts_ms) for name, cutter in zip(STREAMS, cutters, strict=True) for line in cutter.finish()]


async def _frames(exchange: RequestExchange, kind: int, header: Mapping[str, object]) -> AsyncIterator[Frame]:
    """The frames of an answer, counted as held bytes. Raises the engine's error; a disconnect ends the call."""
    async with exchange.link.call() as engine:
        engine.send_nowait(encode(kind, header))
        with ends_with_client(exchange, engine):
            async for frame in engine.frames(exchange.hold):
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
                yield frame


_SANDBOX = "/v1/sandboxes/{sandbox_id}"
ROUTES: list[Route] = [
    ("POST", f"{_SANDBOX}/exec", _execute),
    ("POST", f"{_SANDBOX}/interrupt", _interrupt),
    ("GET", f"{_SANDBOX}/replay", _replay),
    ("GET", f"{_SANDBOX}/executions/{{execution_id}}", _execution),
    ("POST", f"{_SANDBOX}/executions/{{execution_id}}/cancel", _cancel),
]
