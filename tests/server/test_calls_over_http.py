"""``POST /v1/call``: the engine's frames over HTTP, as the SDK sends them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, FrameDecoder, encode
from tests.server.talking import Client

FRAMES = "application/vnd.ramet.frames"


def run_header(sandbox_id: str, stream: bool = False, **more: object) -> dict[str, object]:
    return {"sandbox": sandbox_id, "language": "python", "timeout": None, "stream": stream, **more}


def test_a_cell(client: Client, sandbox_id: str) -> None:
    answer = client.call(calls.RUN, run_header(sandbox_id), b"print(6*7)")
    assert (answer.status, answer.headers["content-type"]) == (200, FRAMES)
    assert answer.headers["ramet-execution"].startswith("exe_")
    assert calls.read_result(answer.frames[0]).stdout == "42\n"


def test_a_stream(client: Client, sandbox_id: str) -> None:
    answer = client.call(calls.RUN, run_header(sandbox_id, stream=True), b"print('x' * 5_000_000)\n1")
    *events, last = answer.frames
    assert b"".join(frame.blob for frame in events if frame.kind == calls.OUTPUT) == b"x" * 5_000_000 + b"\n"
    assert last.kind == calls.RESULT


def test_create_and_close(client: Client) -> None:
    answer = client.call(calls.CREATE, {"memory_mib": 256})
    sandbox_id = answer.frames[0].header["id"]
    info = client.ask("GET", f"/v1/sandboxes/{sandbox_id}").json
    assert info["limits"]["memory_bytes"] == 256 * 1024 * 1024
    assert info["expires_ms"] is not None
    assert client.call(calls.CLOSE, {"sandbox": sandbox_id}).frames[0].kind == calls.ANSWER


def test_an_error_is_a_frame_with_its_status(client: Client) -> None:
    answer = client.call(calls.INFO, {"sandbox": "sbx_" + "0" * 32})
    assert (answer.status, answer.headers["content-type"]) == (404, FRAMES)
    assert calls.read_error(answer.frames[0].header).code == "sandbox_closed"


def test_a_sandbox_that_ended_is_gone_and_says_why(client: Client, sandbox_id: str) -> None:
    client.remove(sandbox_id)
    answer = client.call(calls.RUN, run_header(sandbox_id), b"1")
    assert answer.status == 410
    assert calls.read_error(answer.frames[0].header).details["cause"] == "closed"
    answer = client.execute(sandbox_id, "1")
    assert (answer.status, answer.json["details"]["cause"]) == (410, "closed")


# What nobody may do


@pytest.mark.parametrize("kind", [calls.WATCH, calls.STATS, calls.ANSWER, calls.CHUNK, calls.NEWS, 0, 255])
def test_kinds_that_are_not_for_clients(client: Client, kind: int) -> None:
    answer = client.call(kind, {})
    assert (answer.status, answer.json["code"]) == (400, "protocol_error")


def test_a_second_request_behind_the_first_is_refused_and_neither_is_carried_out(
    client: Client, sandbox_id: str
) -> None:
    other_id = client.create()
    first = encode(calls.RUN, run_header(sandbox_id), b"witness = 1")
    second = encode(calls.CLOSE, {"sandbox": other_id})
    answer = client.ask("POST", "/v1/call", first + second)
    assert (answer.status, answer.json["code"]) == (400, "protocol_error")
    assert client.stdout(sandbox_id, "print('witness' in globals())") == "False"
    assert client.stdout(other_id, "print('alive')") == "alive"


def test_a_request_behind_the_pieces_of_a_file_is_refused(client: Client, sandbox_id: str) -> None:
    other_id = client.create()
    body = encode(calls.WRITE, {"sandbox": sandbox_id, "path": "a", "more": True})
    body += encode(calls.CHUNK, {}, b"data") + encode(calls.CLOSE, {"sandbox": other_id}) + encode(calls.END, {})
    answer = client.ask("POST", "/v1/call", body)
    assert (answer.status, answer.json["code"]) == (400, "protocol_error")
    assert client.stdout(other_id, "print('alive')") == "alive"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"GET / HTTP/1.1\r\n\r\n",
        encode(calls.INFO, {})[:-1],
        b"\xff\xff\xff\xff\x01\x05\0\0\0\0",
        b"\x06\0\0\0\x01\x05\xff\0\0\0",
        b"\x06\0\0\0\x02\x05\0\0\0\0",
        encode(calls.INFO, {}) + b"x",
        b"\x0a\0\0\0\x01\x05\x04\0\0\0[1] ",
        b"\x0b\0\0\0\x01\x05\x05\0\0\0{\xff\xff\xff}",
    ],
)
def test_what_is_not_one_frame_is_refused(client: Client, body: bytes) -> None:
    answer = client.ask("POST", "/v1/call", body)
    assert answer.status in (400, 413)
    assert answer.json["code"] in ("protocol_error", "too_large")


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        (calls.RUN, {}),
        (calls.RUN, {"sandbox": 1}),
        (calls.CREATE, {"python": "/bin/sh"}),
        (calls.CREATE, {"mounts": [{"source": "/etc", "target": "/mnt", "writable": True}]}),
        (calls.CREATE, {"owner": "key_x"}),
        (calls.CREATE, {"template": "nobody-has-this"}),
        (
            calls.THAW,
            {"snapshot": "snp_x", "environment": {}, "mounts": [{"source": "/", "target": "/m", "writable": True}]},
        ),
        (calls.THAW, {}),
        (calls.FORK, {}),
        (calls.RESUME, {"space": 3}),
        (calls.EXTEND, {"sandbox": []}),
    ],
)
def test_a_header_that_does_not_fit_is_a_mistake_of_the_caller(
    client: Client, kind: int, header: dict[str, object]
) -> None:
    answer = client.call(kind, header)
    assert answer.status in (400, 404), answer


def test_an_owner_in_the_header_is_not_believed(client: Client, sandbox_id: str) -> None:
    answer = client.call(calls.INFO, {"sandbox": sandbox_id, "owner": "somebody else"})
    assert answer.status == 200
    rows = client.call(calls.SANDBOXES, {"owner": ""}).frames[0].header["sandboxes"]
    assert isinstance(rows, list)
    assert {row["owner"] for row in rows} == {"local"}


# Bodies


def test_a_body_that_is_too_large_is_refused_before_it_is_read(client: Client) -> None:
    head = encode(calls.RUN, run_header("sbx_" + "0" * 32))[:10]
    response = client.send("POST", "/v1/call", iter([head]), {"Content-Length": str(1 << 30)})
    assert response.status == 413
    assert json.loads(response.read())["code"] == "too_large"


def test_a_body_without_a_length_is_counted(client: Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield encode(calls.INFO, {}, b"x" * 60_000_000)[:-1]
        for _ in range(40):
            yield b"x" * 1_000_000

    try:
        response = client.send("POST", "/v1/call", pieces())
        assert response.status in (400, 413)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it hung up while we were still sending


def test_code_of_many_megabytes(client: Client, sandbox_id: str) -> None:
    code = b"print(len('" + b"x" * 20_000_000 + b"'))"
    assert calls.read_result(client.call(calls.RUN, run_header(sandbox_id), code).frames[0]).stdout == "20000000\n"


# Files


def test_a_file_goes_up_and_down_in_pieces(client: Client, sandbox_id: str) -> None:
    data = os.urandom(30_000_000)

    def pieces() -> Iterator[bytes]:
        yield encode(calls.WRITE, {"sandbox": sandbox_id, "path": "large", "more": True})
        for start in range(0, len(data), calls.CHUNK_BYTES):
            yield encode(calls.CHUNK, {}, data[start : start + calls.CHUNK_BYTES])
        yield encode(calls.END, {})

    response = client.send("POST", "/v1/call", pieces())
    assert (response.status, [frame.kind for frame in FrameDecoder(FROM_ENGINE).feed(response.read())]) == (200, [30])
    answer = client.call(calls.READ, {"sandbox": sandbox_id, "path": "large"})
    assert b"".join(frame.blob for frame in answer.frames[:-1]) == data


def test_a_file_that_is_refused_is_refused_while_it_is_sent(client: Client, sandbox_id: str) -> None:
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        yield encode(calls.WRITE, {"sandbox": sandbox_id, "path": "/usr/not-here", "more": True})
        for _ in range(200):
            sent += 1
            yield encode(calls.CHUNK, {}, b"x" * calls.CHUNK_BYTES)
        yield encode(calls.END, {})

    try:
        response = client.send("POST", "/v1/call", pieces())
        assert response.status == 403
    except (BrokenPipeError, ConnectionResetError):
        pass  # it hung up while we were still sending
    client.close()
    assert client.stdout(sandbox_id, "print('goes on')") == "goes on"


def test_a_file_whose_end_does_not_come_is_an_error(client: Client, sandbox_id: str) -> None:
    body = encode(calls.WRITE, {"sandbox": sandbox_id, "path": "half", "more": True}) + encode(calls.CHUNK, {}, b"half")
    assert client.ask("POST", "/v1/call", body).status == 400
    assert client.call(calls.WRITE, {"sandbox": sandbox_id, "path": "half", "more": False}, b"whole").status == 200
    assert client.stdout(sandbox_id, "print(open('half').read())") == "whole"


# Once


@pytest.mark.promise("survive-retries")
def test_a_repeated_create_gives_the_same_sandbox(client: Client) -> None:
    headers = {"Idempotency-Key": "create-1"}
    first = client.call(calls.CREATE, {}, headers=headers)
    again = client.call(calls.CREATE, {}, headers=headers)
    assert first.status == 200
    assert first.body == again.body
    assert client.call(calls.CREATE, {"memory_mib": 512}, headers=headers).status == 409
    assert len(client.ask("GET", "/v1/sandboxes").json["sandboxes"]) == 1


def test_a_repeated_fork_makes_no_more_children(client: Client, sandbox_id: str) -> None:
    header = {"sandbox": sandbox_id, "count": 2, "reseed": True}
    answers = [client.call(calls.FORK, header, headers={"Idempotency-Key": "fork-1"}) for _ in range(3)]
    assert {answer.body for answer in answers} == {answers[0].body}
    assert len(client.ask("GET", "/v1/sandboxes").json["sandboxes"]) == 3
