"""Connections of clients that are slow, endless, silent, confused or many. None of them stops service."""

from __future__ import annotations

import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.talking import Client, raw_connection, read_all
from tests.server.workers import WorkerProcess, running_worker

_HEALTH = b"GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_NO_ENGINE = b"a new one is being started"  # how it ends what it says of its health
_SHORT = {
    "head_seconds": 0.5,
    "body_seconds": 0.5,
    "idle_seconds": 0.7,
    "unread_seconds": 1.0,
    "linger_seconds": 0.5,
    "head_bytes": 16 * 1024,
    "headers": 50,
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """One that does not wait long. It has no engine, and answers what needs none."""
    with running_worker(tmp_path_factory.mktemp("short"), **_SHORT) as started:
        _assert_serves(started)
        yield started


def _assert_serves(worker: WorkerProcess) -> None:
    client = Client(worker.port)
    assert client.ask("GET", "/v1/healthz").body.endswith(_NO_ENGINE)
    client.close()


def _statuses(said: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", said)]


def _exchange(worker: WorkerProcess, request: bytes) -> bytes:
    """What the server says to these bytes until it hangs up."""
    with raw_connection(worker.port) as connection:
        connection.sendall(request)
        return read_all(connection)


# Time


def test_a_connection_that_says_nothing_is_closed(worker: WorkerProcess) -> None:
    with raw_connection(worker.port) as connection:
        assert read_all(connection) == b""
    _assert_serves(worker)


def test_a_head_that_does_not_end_is_given_up(worker: WorkerProcess) -> None:
    with raw_connection(worker.port) as connection:
        connection.sendall(b"GET /v1/healthz HTTP/1.1\r\n")
        said = b""
        try:
            while True:  # one byte at a time, for ever: progress alone is not enough
                connection.sendall(b"X-A: b\r\n"[:1])
                connection.settimeout(0.05)
                try:
                    piece = connection.recv(65536)
                except TimeoutError:
                    continue
                said += piece
                if not piece:
                    break
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert _statuses(said) in ([408], [])
    _assert_serves(worker)


def test_a_body_that_stops_coming_is_given_up(worker: WorkerProcess) -> None:
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    assert _exchange(worker, head + b"{") == b""


@pytest.mark.deep("restarts")
def test_an_idle_connection_is_closed_and_a_used_one_is_not(worker: WorkerProcess) -> None:
    with raw_connection(worker.port) as connection:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            connection.sendall(_HEALTH)
            assert connection.recv(65536).endswith(_NO_ENGINE)
            time.sleep(0.2)  # the subject: less than what is allowed between two requests
        assert connection.recv(65536) == b""


def test_a_refused_body_is_still_read_for_a_while_so_that_the_answer_arrives(worker: WorkerProcess) -> None:
    head = b"POST /v1/call HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 50000000\r\n\r\n"
    with raw_connection(worker.port) as connection:
        connection.sendall(head)
        connection.sendall(b"x" * 10_000_000)
        assert _statuses(connection.recv(65536)) == [403]
    _assert_serves(worker)


def test_a_connection_goes_on_after_a_refused_body(worker: WorkerProcess) -> None:
    head = b"POST /v1/call HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 10\r\n\r\n"
    with raw_connection(worker.port) as connection:
        connection.sendall(head)
        assert _statuses(connection.recv(65536)) == [403]
        connection.sendall(b"0123456789" + _HEALTH)
        assert connection.recv(65536).endswith(_NO_ENGINE)


# Size


@pytest.mark.parametrize(
    "flood",
    [
        b"X-Flood: " + b"x" * 100_000 + b"\r\n\r\n",
        b"".join(b"X-Flood-%d: x\r\n" % number for number in range(200)) + b"\r\n",
        b"".join(b"X-Flood-%d: x\r\n" % number for number in range(20_000)),
    ],
)
def test_a_head_that_is_too_large_is_refused(worker: WorkerProcess, flood: bytes) -> None:
    said = _exchange(worker, b"GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n" + flood)
    assert _statuses(said) in ([431], [])  # nothing: it hung up while we were still sending
    _assert_serves(worker)


@pytest.mark.parametrize("length", [20_000, 200_000], ids=["in one piece", "in several"])
def test_an_address_that_is_too_long_is_refused(worker: WorkerProcess, length: int) -> None:
    said = _exchange(worker, b"GET /" + b"x" * length + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert _statuses(said) in ([431], [400], [])


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(worker: WorkerProcess) -> None:
    for path in (b"/v1/sandboxes", b"/v1/sandboxes/sbx_" + b"0" * 32 + b"/exec"):
        request = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n" % path
        with raw_connection(worker.port) as connection:
            connection.sendall(request)
            assert _statuses(connection.recv(65536)) == [413]


def test_a_body_of_unknown_length_is_counted(worker: WorkerProcess) -> None:
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
    with raw_connection(worker.port) as connection:
        connection.sendall(head + chunk * 12)
        assert _statuses(connection.recv(65536)) == [413]


# Nonsense


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,  # TLS
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/healthz HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n X-Folded: a\r\n\r\n",
        b"GET /v1/healthz HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
        b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x10\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nXX\r\n",
    ],
)
def test_what_is_not_http_is_refused(worker: WorkerProcess, request_bytes: bytes) -> None:
    said = _exchange(worker, request_bytes)
    assert _statuses(said)[:1] in ([400], [])
    assert 500 not in _statuses(said)
    _assert_serves(worker)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4, 5\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
    ],
)
def test_a_request_with_two_lengths_is_refused_and_nothing_hides_in_it(worker: WorkerProcess, headers: bytes) -> None:
    hidden = b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\n\r\n"
    said = _exchange(
        worker, b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n0\r\n\r\n" + hidden
    )
    assert b"owner" not in said
    assert _statuses(said)[:1] in ([400], [])


def test_line_breaks_in_a_path_do_not_reach_an_answer(worker: WorkerProcess) -> None:
    with raw_connection(worker.port) as connection:
        connection.sendall(b"GET /%0d%0aSet-Cookie:%20a=b HTTP/1.1\r\nHost: localhost\r\n\r\n")
        said = connection.recv(65536)
    assert _statuses(said) == [404]
    assert b"\nSet-Cookie" not in said


def test_nonsense_behind_a_request_does_not_replace_its_answer(worker: WorkerProcess) -> None:
    assert _statuses(_exchange(worker, _HEALTH + b"\0\0\0 nonsense\r\n\r\n"))[:1] == [503]


# Order


def test_requests_sent_together_are_answered_in_order(worker: WorkerProcess) -> None:
    requests = [
        b"GET /v1/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % name for name in (b"healthz", b"whoami", b"nothing")
    ]
    said = _exchange(worker, b"".join(requests * 3))
    assert _statuses(said) == [503, 200, 404] * 3


def test_too_many_requests_at_once_are_not_kept(worker: WorkerProcess) -> None:
    statuses = _statuses(_exchange(worker, _HEALTH * 5000))
    assert set(statuses) <= {503, 431}
    _assert_serves(worker)


def test_a_connection_is_kept_unless_its_client_does_not_want_that(worker: WorkerProcess) -> None:
    with raw_connection(worker.port) as connection:
        for _ in range(3):
            connection.sendall(_HEALTH)
            assert connection.recv(65536).endswith(_NO_ENGINE)
        connection.sendall(_HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert read_all(connection).endswith(_NO_ENGINE)
    assert _exchange(worker, b"GET /v1/healthz HTTP/1.0\r\nHost: localhost\r\n\r\n").endswith(_NO_ENGINE)


def test_a_client_that_waits_to_be_told_to_go_on_is_told(worker: WorkerProcess) -> None:
    with raw_connection(worker.port) as connection:
        connection.sendall(
            b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 100")
        connection.sendall(b"{}")
        assert _statuses(connection.recv(65536)) == [503]


def test_half_a_connection_is_none(worker: WorkerProcess) -> None:
    with raw_connection(worker.port) as connection:
        connection.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    with raw_connection(worker.port) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    _assert_serves(worker)


def test_an_upgrade_is_not_offered(worker: WorkerProcess) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
    said = _exchange(worker, _HEALTH[:-2] + upgrade)
    assert 101 not in _statuses(said)
    _assert_serves(worker)


def test_an_answer_is_one_packet(worker: WorkerProcess) -> None:
    with raw_connection(worker.port) as connection:
        for _ in range(50):
            connection.sendall(_HEALTH)
            said = connection.recv(65536)
            assert said.startswith(b"HTTP/1.1 503")
            assert said.endswith(_NO_ENGINE)


# Number


def test_beyond_the_bound_the_connection_that_was_silent_longest_is_closed(tmp_path: Path) -> None:
    with running_worker(tmp_path, connections=20) as worker, ExitStack() as opened:
        _assert_serves(worker)
        held = [opened.enter_context(raw_connection(worker.port)) for _ in range(20)]
        held[0].sendall(_HEALTH)
        assert held[0].recv(65536).endswith(_NO_ENGINE)
        one_more = opened.enter_context(raw_connection(worker.port))
        one_more.sendall(_HEALTH)
        assert one_more.recv(65536).endswith(_NO_ENGINE)
        assert read_all(held[1]) == b""
        for connection in (held[0], *held[2:]):
            connection.sendall(_HEALTH)
            assert connection.recv(65536).endswith(_NO_ENGINE)


@pytest.mark.deep("load")
def test_ten_thousand_idle_connections_do_not_stop_service(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 11_000:
        pytest.skip(f"this process may open {hard} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    try:
        with running_worker(tmp_path, head_seconds=120.0) as worker:
            _assert_serves(worker)
            for _ in range(10_000):
                held.append(socket.create_connection(("127.0.0.1", worker.port), timeout=60))
            _assert_serves(worker)
    finally:
        for connection in held:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
