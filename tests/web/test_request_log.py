"""A log line says what happened on one line, whatever a client sent, and never keeps the server waiting."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from ramet.web.request_log import Log, RequestLog, trace_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def request(**values: object) -> RequestLog:
    log = RequestLog("GET", "127.0.0.1:5000", f"00-{TRACE}-{PARENT}-01")
    log.route, log.status, log.key, log.sandbox, log.sent_bytes = "/v1/sandboxes/{id}", 200, "key_a", "sbx_1", 12
    for name, value in values.items():
        setattr(log, name, value)
    return log


def test_a_request_is_one_line_of_text(pipe: tuple[int, int]) -> None:
    Log("text", pipe[1]).request(request())
    line = os.read(pipe[0], 10_000).decode()
    assert line.count("\n") == 1
    assert "info request GET /v1/sandboxes/{id} 200 " in line
    for part in ("12B", "key=key_a", "sandbox=sbx_1", f"trace={TRACE}", "client=127.0.0.1:5000"):
        assert part in line.split()


def test_a_request_is_one_object_of_json(pipe: tuple[int, int]) -> None:
    Log("json", pipe[1]).request(request(execution="exe_1"))
    line = json.loads(os.read(pipe[0], 10_000))
    expected = {"event": "request", "method": "GET", "route": "/v1/sandboxes/{id}", "status": 200, "bytes": 12}
    assert expected.items() <= line.items()
    assert (line["key"], line["sandbox"], line["execution"], line["trace"]) == ("key_a", "sbx_1", "exe_1", TRACE)


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    "evil", ["a\nfaked line", "a\r\nb", "\x1b[2J", "\u2028", "\x00", "key=admin", '"', "\udcff", ""]
)
def test_what_a_client_sent_cannot_fake_or_break_a_line(pipe: tuple[int, int], style: str, evil: str) -> None:
    log = Log("json" if style == "json" else "text", pipe[1])
    log.request(request(sandbox=evil, method=evil))
    log.event("started", url=evil)
    data = os.read(pipe[0], 10_000)
    assert data.isascii()
    assert data.count(b"\n") == 2
    assert not any(byte < 32 for byte in data.replace(b"\n", b""))
    if style == "json":
        assert [json.loads(line)["event"] for line in data.splitlines()] == ["request", "started"]


def test_a_line_has_a_bound(pipe: tuple[int, int]) -> None:
    log = Log("text", pipe[1])
    log.request(request(sandbox="\x00" * 100_000))
    log.event("e", **{f"name{number}": "\x00" * 1000 for number in range(100)})
    assert all(len(line) < 4096 for line in os.read(pipe[0], 100_000).splitlines())


def test_a_reader_that_does_not_read_costs_lines_and_no_waiting(pipe: tuple[int, int]) -> None:
    log = Log("text", pipe[1])
    for _ in range(5000):
        log.request(request())
    assert log.dropped > 0
    read = b""
    while True:
        try:
            read += os.read(pipe[0], 1 << 20)
        except BlockingIOError:
            break
    assert read.count(b"\n") == 5000 - log.dropped
    log.event("stopped")
    last = os.read(pipe[0], 10_000).decode().splitlines()
    assert f"count={log.dropped}" in last[0]
    assert "stopped" in last[1]


def test_a_reader_that_is_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log = Log("text", writing)
    log.event("started")
    log.event("stopped")
    os.close(writing)
    assert log.dropped == 2


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"00-{TRACE}-{PARENT}-01", TRACE),
        (f"00-{TRACE}-{PARENT}-00", TRACE),
        (f"cc-{TRACE}-{PARENT}-01-what-comes-later", TRACE),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{TRACE[:-1]}-{PARENT}-01", None),
        (f"00-{TRACE}-{PARENT}-01\n", None),
        (f" 00-{TRACE}-{PARENT}-01", None),
        ("", None),
        (None, None),
    ],
)
def test_a_trace_is_known_only_by_a_header_as_w3c_has_it(header: str | None, expected: str | None) -> None:
    assert trace_id(header) == expected
