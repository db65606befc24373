"""Terminals over HTTP, as the published client uses them.

A session is a stream of JSON lines that stays open as long as its terminal lives; input, sizes and the end come as
separate requests. The engine owns the terminal: it goes on when a stream breaks, and any number of clients may attach.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.engine_link.link import EngineCall
from ramet.doors.http.requests import bodies
from ramet.doors.http.requests.disconnects import ask, ends_with_client
from ramet.doors.http.requests.errors import Headers
from ramet.doors.http.requests.exchange import RequestExchange, Route
from ramet.doors.http.requests.json_answers import answer_json, answer_nothing
from ramet.doors.http.requests.queries import QueryFields
from ramet.errors import RametError
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.values.terminals import INPUT_BYTES_AT_MOST, READ_BYTES_AT_MOST, TerminalInfo, check_size

_LINES: Headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
_COLUMNS, _ROWS = 80, 24
_INPUT_BODY_BYTES = 4 * 1024 * 1024
_READ_BYTES = 65536
_WAIT_MS = 10_000
_WAIT_MS_AT_MOST = 25_000  # below the 30 seconds after which clients give up without a byte


def _header(exchange: RequestExchange, sandbox_id: str, **more: object) -> dict[str, object]:
    return {"sandbox": sandbox_id, "owner": exchange.owner, **more}


# Sessions


@api.operation(
    "openTerminal",
    "terminals",
    "A program in a terminal, and what it prints",
    {
        200: api.answer(
            (
                "Events, a line each, as long as the program runs: `pty_ready`, `pty_data`, `pty_exit` "
                "or `pty_error`. The program goes on when the connection breaks."
            ),
            api.ref("TerminalEvent"),
            {"type": "pty_ready", "session_id": api.TERMINAL_ID},
            kind=api.LINES,
        )
    },
    body=api.body(api.ref("NewTerminal"), {"shellCmd": "bash -i", "cols": 80, "rows": 24}),
)
async def open_terminal(exchange: RequestExchange, sandbox_id: str) -> None:
    asked = bodies.parse_object(await exchange.read_body())
    argv = _argv(asked.pop("shellCmd", None), asked.pop("argv", None))
    environment = _environment(asked.pop("env", None))
    body = bodies.JsonBody(asked)
    columns, rows, cwd = body.optional_whole("cols"), body.optional_whole("rows"), body.optional_text("cwd")
    body.done()
    columns, rows = check_size(_COLUMNS if columns is None else columns, _ROWS if rows is None else rows)
    if cwd is not None:
        checks.check_path(cwd, "cwd")
    header = _header(exchange, sandbox_id, argv=argv, env=environment, cwd=cwd, cols=columns, rows=rows)
    terminal_id = fields.text((await ask(exchange, calls.TERMINAL_OPEN, header)).header, "terminal")
    await _stream(exchange, sandbox_id, terminal_id, 0)


@api.operation(
    "attach",
    "terminals",
    "What a terminal printed last, and what it prints from now on",
    {
        200: api.answer(
            "Events as of POST .../pty.",
            api.ref("TerminalEvent"),
            {"type": "pty_ready", "session_id": api.TERMINAL_ID},
            kind=api.LINES,
        )
    },
    parameters=[
        api.query(
            "since",
            "From this offset on, as far as it is still kept (1 MiB).",
            api.whole(minimum=0, maximum=999999999999999999),
        )
    ],
)
async def attach(exchange: RequestExchange, sandbox_id: str, terminal_id: str) -> None:
    query = QueryFields(exchange.scope["query_string"])
    since = query.optional_whole("since")
    query.done()
    # A first call for no output, so that an unknown terminal is answered with an error and not with a stream.
    header = _header(exchange, sandbox_id, terminal=terminal_id, since=0, max_bytes=1, timeout_ms=0)
    async with exchange.link.call() as call:
        await call.send(encode(calls.TERMINAL_READ, header))
        async for frame in call.frames():
            if frame.kind == calls.ERROR:
                raise calls.read_error(frame.header)
    await _stream(exchange, sandbox_id, terminal_id, since)


async def _stream(exchange: RequestExchange, sandbox_id: str, terminal_id: str, since: int | None) -> None:
    await exchange.start(200, _LINES)
    await exchange.write(_line({"type": "pty_ready", "session_id": terminal_id}))
    try:
        async with exchange.link.call() as call:
            header = _header(exchange, sandbox_id, terminal=terminal_id, since=since)
            await call.send(encode(calls.TERMINAL_ATTACH, header))
            with ends_with_client(exchange, call):
                await _relay(exchange, call)
    except RametError as error:
        # Report every end: the client cannot tell a silent one from a terminal that is still there.
        await exchange.write(_line({"type": "pty_error", "message": error.message, "code": error.code}))
    await exchange.write(b"", more=False)


async def _relay(exchange: RequestExchange, call: EngineCall) -> None:
    decoder = FrameDecoder(FROM_ENGINE)
    heartbeat, wake = exchange.application.heartbeat, call.wake
    try:
        while not call.over:
            heartbeat.heard(wake)
            data = await call.take()
            # Woken by the heartbeat: send an empty line, which means nothing but shows that we are alive.
            piece = b"".join([_event(frame) for frame in decoder.feed(data)]) if data else b"\n"
            if piece:
                await exchange.write(piece)
    finally:
        heartbeat.forget(wake)


def _event(frame: Frame) -> bytes:
    if frame.kind == calls.TERMINAL_DATA:
        data = base64.b64encode(frame.blob).decode("ascii")
        return _line({"type": "pty_data", "data_b64": data, "seq": fields.natural(frame.header, "seq")})
    if frame.kind == calls.ERROR:
        raise calls.read_error(frame.header)
    return _line({"type": "pty_exit", "data": fields.whole(frame.header, "exit_code")})


def _line(event: Mapping[str, object]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode("ascii") + b"\n"


def _argv(command: object, argv: object) -> list[str]:
    if (command is None) == (argv is None):
        raise wrong_argument("argv", "give either shellCmd, a string, or argv, a list of strings")
    if command is not None:
        if not isinstance(command, str) or not command.strip() or "\0" in command:
            raise wrong_argument("shellCmd", "shellCmd must be a non-empty string without NUL characters")
        return ["bash", "-c", command]
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise wrong_argument("argv", "argv must be a non-empty list of strings without NUL characters")
    return argv


def _environment(pairs: object) -> dict[str, str]:
    """Variables as the published client sends them, a list of pairs, or as an object. Messages never hold values."""
    if pairs is None:
        return {}
    if isinstance(pairs, dict):
        found = pairs
    elif isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        if not all(isinstance(name, str) for name, _ in pairs):
            raise wrong_argument("env", 'each name in env must be a string: [["NAME", "value"], ...]')
        found = dict(pairs)
    else:
        raise wrong_argument("env", 'env must be a list of pairs: [["NAME", "value"], ...]')
    checks.check_environment(found)
    return found


# One request each


@api.operation(
    "listTerminals",
    "terminals",
    "The terminals of a sandbox",
    {
        200: api.answer(
            "Also those whose program has ended.",
            api.array(api.ref("Terminal")),
            [{"pty_id": api.TERMINAL_ID, "cmd_label": "bash -i", "created_at_ms": 1776510028036, "exit_code": None}],
        )
    },
)
async def list_terminals(exchange: RequestExchange, sandbox_id: str) -> None:
    frame = await ask(exchange, calls.TERMINAL_LIST, _header(exchange, sandbox_id))
    rows = [TerminalInfo.read(row) for row in fields.array(frame.header, "terminals") if isinstance(row, dict)]
    told = [
        {"pty_id": row.id, "cmd_label": row.label, "created_at_ms": row.created_ms, "exit_code": row.exit_code}
        for row in rows
    ]
    await answer_json(exchange, told)


@api.operation(
    "input",
    "terminals",
    "Type into a terminal",
    {204: api.DONE},
    body=api.body(
        api.record({"data_b64": api.text("Bytes in base64.", format="byte", contentEncoding="base64")}),
        {"data_b64": "bHMK"},
    ),
)
async def send_input(exchange: RequestExchange, sandbox_id: str, terminal_id: str) -> None:
    body = await exchange.read_fields(_INPUT_BODY_BYTES)
    text = body.text("data_b64")
    body.done()
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise wrong_argument("data_b64", "data_b64 must be base64") from None
    header = _header(exchange, sandbox_id, terminal=terminal_id)
    # At least one call, even without input, so that an unknown terminal is reported.
    for start in range(0, max(len(data), 1), INPUT_BYTES_AT_MOST):
        await ask(exchange, calls.TERMINAL_INPUT, header, data[start : start + INPUT_BYTES_AT_MOST])
    await answer_nothing(exchange)


@api.operation(
    "resize",
    "terminals",
    "Change the size of a terminal",
    {204: api.DONE},
    body=api.body(
        api.record({"cols": api.whole(minimum=1, maximum=65535), "rows": api.whole(minimum=1, maximum=65535)}),
        {"cols": 120, "rows": 40},
    ),
)
async def resize(exchange: RequestExchange, sandbox_id: str, terminal_id: str) -> None:
    body = await exchange.read_fields()
    columns, rows = body.whole("cols"), body.whole("rows")
    body.done()
    check_size(columns, rows)
    header = _header(exchange, sandbox_id, terminal=terminal_id, cols=columns, rows=rows)
    await ask(exchange, calls.TERMINAL_RESIZE, header)
    await answer_nothing(exchange)


@api.operation("kill", "terminals", "End a terminal and its program", {204: api.DONE}, body=api.EMPTY_BODY)
async def kill(exchange: RequestExchange, sandbox_id: str, terminal_id: str) -> None:
    (await exchange.read_fields()).done()
    await ask(exchange, calls.TERMINAL_KILL, _header(exchange, sandbox_id, terminal=terminal_id))
    await answer_nothing(exchange)


@api.operation(
    "readTerminal",
    "terminals",
    "Wait for output of a terminal, without a stream",
    {
        200: api.answer(
            "What there is from `since_seq` on; empty after `timeout_ms`.",
            api.record(
                {
                    "data_b64": api.text(),
                    "seq": api.whole("Offset of the first byte."),
                    "next_seq": api.whole("What to ask for next."),
                    "exit_code": api.whole(null=True),
                }
            ),
            {"data_b64": "aGVsbG8NCg==", "seq": 0, "next_seq": 7, "exit_code": None},
        )
    },
    body=api.body(
        api.record(
            {
                "since_seq": api.whole(null=True, minimum=0, maximum=4611686018427387904),
                "max_bytes": api.whole(null=True, minimum=1, maximum=2147483648),
                "timeout_ms": api.whole("At most 25000 are waited.", null=True, minimum=0, maximum=2147483648),
            },
            required=(),
        ),
        {"since_seq": 0, "timeout_ms": 1000},
        required=False,
    ),
)
async def read(exchange: RequestExchange, sandbox_id: str, terminal_id: str) -> None:
    """A long poll, for clients that cannot hold a stream open: returns the output since an offset."""
    body = await exchange.read_fields()
    since = _bounded(body, "since_seq", 0, 0, 2**62)
    max_bytes = _bounded(body, "max_bytes", _READ_BYTES, 1, 2**31)
    wait_ms = _bounded(body, "timeout_ms", _WAIT_MS, 0, 2**31)
    body.done()
    header = _header(
        exchange,
        sandbox_id,
        terminal=terminal_id,
        since=since,
        max_bytes=min(max_bytes, READ_BYTES_AT_MOST),
        timeout_ms=min(wait_ms, _WAIT_MS_AT_MOST),
    )
    data, seq = b"", since
    async with exchange.link.call() as call:
        await call.send(encode(calls.TERMINAL_READ, header))
        with ends_with_client(exchange, call):
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
                if frame.kind == calls.TERMINAL_DATA:
                    data, seq = frame.blob, fields.natural(frame.header, "seq")
    answer = {
        "data_b64": base64.b64encode(data).decode("ascii"),
        "seq": seq,
        "next_seq": fields.natural(frame.header, "next_seq"),
        "exit_code": fields.optional_whole(frame.header, "exit_code"),
    }
    await answer_json(exchange, answer)


def _bounded(body: bodies.JsonBody, name: str, default: int, least: int, most: int) -> int:
    value = body.optional_whole(name)
    if value is None:
        return default
    if not least <= value <= most:
        raise must(name, f"be a whole number from {least} to {most}", value)
    return value


_PTY = "/v1/sandboxes/{sandbox_id}/pty"
_ONE = f"{_PTY}/{{terminal_id}}"

ROUTES: list[Route] = [
    ("POST", _PTY, open_terminal),
    ("GET", _PTY, list_terminals),
    ("GET", f"{_ONE}/attach", attach),
    ("POST", f"{_ONE}/input", send_input),
    ("POST", f"{_ONE}/resize", resize),
    ("POST", f"{_ONE}/kill", kill),
    ("POST", f"{_ONE}/read", read),
]
