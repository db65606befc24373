"""Plain HTTP through the proxy as real clients speak it: kept connections, long bodies both ways, websockets."""

from __future__ import annotations

import hashlib
import http.client
import queue
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.network.http_talk import hear_head, say
from tests.network.proxies import (
    NAME,
    Place,
    ProxyDriver,
    connect,
    receive,
    receive_all,
    receive_head,
    spec_of,
    tunnel,
)
from tests.network.routes import websocket_frame
from tests.network.servers import WAIT_SECONDS, Server, serving

_HANDSHAKE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAA\r\nSec-WebSocket-Version: 13\r\n"


@pytest.fixture
def place(proxy: ProxyDriver, http_server: Server) -> Place:
    return proxy.open(http_server.rule(NAME), addresses={NAME: "127.0.0.1"})


@pytest.fixture
def client(place: Place) -> Iterator[httpx.Client]:
    with httpx.Client(proxy=f"http://127.0.0.1:{place.proxy_port}", trust_env=False, timeout=WAIT_SECONDS) as made:
        yield made


def _get(server: Server, path: str, more: str = "") -> bytes:
    host = server.rule(NAME)
    return f"GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


def test_requests_of_one_client_share_a_connection_and_an_entry_in_the_log(
    proxy: ProxyDriver, place: Place, client: httpx.Client, http_server: Server
) -> None:
    before = http_server.connections
    for number in range(10):
        assert len(client.get(http_server.url(f"/bytes/{number}", NAME)).content) == number
    assert http_server.connections == before + 1
    (entry,) = proxy.log(place)
    assert (entry["kind"], entry["host"], entry["port"], entry["allowed"], entry["open"]) == (
        "http",
        NAME,
        http_server.port,
        True,
        True,
    )
    client.close()
    proxy.wait_for_entry(place, lambda entry: entry["open"] is False)


def test_the_same_client_goes_to_one_host_and_another(proxy: ProxyDriver, http_server: Server) -> None:
    names = ("one.example", "two.example")
    place = proxy.open(*map(http_server.rule, names), addresses=dict.fromkeys(names, "127.0.0.1"))
    connection = http.client.HTTPConnection("127.0.0.1", place.proxy_port, timeout=WAIT_SECONDS)
    for name in (*names, *names):
        connection.request("GET", http_server.url("/echo", name))
        assert f'["Host", "{http_server.rule(name)}"]' in connection.getresponse().read().decode()
    connection.close()
    assert [entry["host"] for entry in proxy.log(place)] == [*names, *names]


def test_pipelined_requests_are_answered_in_their_order(place: Place, http_server: Server) -> None:
    before = http_server.connections
    answers = say(place, b"".join(_get(http_server, f"/files/{number}") for number in range(20)))
    assert answers.count(b"HTTP/1.1 404 ") == 20
    assert http_server.connections == before + 1


def test_a_request_that_comes_byte_by_byte_is_read_as_one(place: Place, http_server: Server) -> None:
    with connect(place.proxy_port) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in _get(http_server, "/bytes/2"):
            end.send(bytes([byte]))
        assert receive_head(end).startswith(b"HTTP/1.1 200 OK")
        assert receive(end, 2) == b"\x00\x01"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 300_000, 30_000_000])
def test_a_long_body_arrives_whole_with_its_length_told(client: httpx.Client, http_server: Server, size: int) -> None:
    answer = client.get(http_server.url(f"/bytes/{size}", NAME))
    assert answer.headers["content-length"] == str(size)
    pattern = bytes(range(256)) * 256
    assert answer.content == (pattern * (size // len(pattern) + 1))[:size]


@pytest.mark.parametrize("size", [1, 65_536, 3_000_000])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_long_body_goes_out_whole(client: httpx.Client, http_server: Server, size: int, in_chunks: bool) -> None:
    body = hashlib.shake_128(b"some bytes").digest(size)

    def pieces() -> Iterator[bytes]:
        for start in range(0, size, 70_000):
            yield body[start : start + 70_000]

    client.post(http_server.url("/files/none", NAME), content=pieces() if in_chunks else body)
    arrived = http_server.requests[-1]
    assert arrived.body == body
    assert arrived.header("Content-Length") == (None if in_chunks else str(size))


def test_both_bodies_flow_at_the_same_time(proxy: ProxyDriver) -> None:
    """A server that sends back what comes, while it comes; far more than the buffers on the way hold."""
    size = 8_000_000

    def talk(connection: socket.socket) -> None:
        hear_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        left = size
        while left:
            piece = connection.recv(65536)
            left -= len(piece)
            connection.sendall(piece)

    with serving(talk) as server:
        place = proxy.open(server.rule(NAME), addresses={NAME: "127.0.0.1"})
        with connect(place.proxy_port) as end:
            head = _get(server, "/", f"Content-Length: {size}\r\n").replace(b"GET", b"POST", 1)
            sender = threading.Thread(target=lambda: end.sendall(head + b"x" * size))
            sender.start()
            assert receive_head(end).startswith(b"HTTP/1.1 200 OK")
            assert receive(end, size) == b"x" * size
            sender.join(WAIT_SECONDS)


def test_events_arrive_while_the_answer_goes_on(place: Place, http_server: Server) -> None:
    http_server.released.clear()
    with connect(place.proxy_port) as end:
        end.sendall(_get(http_server, "/slow"))
        assert receive_head(end).startswith(b"HTTP/1.1 200 OK")
        assert receive(end, 5) == b"first"
        http_server.released.set()
        assert receive(end, 5) == b" half"


def test_a_slow_reader_holds_its_server_up_and_nobody_else(place: Place, http_server: Server) -> None:
    size = 40_000_000
    with connect(place.proxy_port) as slow:
        slow.sendall(_get(http_server, f"/bytes/{size}"))
        receive_head(slow)
        with connect(place.proxy_port) as other:
            other.sendall(_get(http_server, "/bytes/5"))
            receive_head(other)
            assert len(receive(other, 5)) == 5
        total = 0
        while total < size:
            total += len(slow.recv(1 << 20))
        assert total == size


def test_a_websocket_goes_through_both_ways(place: Place, http_server: Server) -> None:
    with connect(place.proxy_port) as end:
        end.sendall(_get(http_server, "/websocket", _HANDSHAKE))
        head = receive_head(end)
        assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert b"\r\nUpgrade: websocket\r\n" in head
        for size in (5, 70_000):
            end.sendall(websocket_frame(2, b"x" * size, b"\x01\x02\x03\x04"))
            back = websocket_frame(2, b"x" * size)
            assert receive(end, len(back)) == back
        end.sendall(websocket_frame(8, b"", b"\x01\x02\x03\x04"))
        assert receive_all(end) == websocket_frame(8, b"")


def test_a_websocket_that_is_refused_by_its_server_is_an_answer_as_any_other(place: Place, http_server: Server) -> None:
    with connect(place.proxy_port) as end:
        end.sendall(_get(http_server, "/bytes/1", _HANDSHAKE) + _get(http_server, "/bytes/2"))
        assert receive_head(end).startswith(b"HTTP/1.1 200 OK")
        receive(end, 1)
        assert receive_head(end).startswith(b"HTTP/1.1 200 OK")


def test_no_other_protocol_is_gone_over_to(place: Place, http_server: Server) -> None:
    more = "Upgrade: h2c, websocket\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n"
    say(place, _get(http_server, "/bytes/1", more))
    sent = http_server.requests[-1]
    assert [sent.header(name) for name in ("Upgrade", "Connection", "HTTP2-Settings")] == [None, None, None]


def test_rules_that_change_hold_for_the_next_request_on_a_kept_connection(
    proxy: ProxyDriver, place: Place, http_server: Server
) -> None:
    with connect(place.proxy_port) as end:
        end.sendall(_get(http_server, "/bytes/1"))
        receive_head(end)
        receive(end, 1)
        proxy.change(place, spec_of(http_server.rule(NAME), deny=[NAME + ":*"], addresses={NAME: "127.0.0.1"}))
        proxy.flush()
        end.sendall(_get(http_server, "/bytes/1"))
        assert receive_head(end).startswith(b"HTTP/1.1 403 data.example:")
    assert [entry["allowed"] for entry in proxy.log(place)] == [True, False]


def test_a_redirect_is_a_new_request_that_is_decided_on_by_itself(client: httpx.Client, http_server: Server) -> None:
    answer = client.get(http_server.url("/redirect?to=http://other.example/", NAME), follow_redirects=True)
    assert [one.status_code for one in (*answer.history, answer)] == [302, 403]


def test_http_in_a_tunnel_is_an_entry_of_the_tunnel(proxy: ProxyDriver, place: Place, http_server: Server) -> None:
    with tunnel(place, NAME, http_server.port) as end:
        end.sendall(b"GET /bytes/5 HTTP/1.1\r\nHost: " + http_server.rule(NAME).encode() + b"\r\n\r\n")
        receive_head(end)
        receive(end, 5)
    (entry,) = proxy.log(place)
    assert entry["kind"] == "connect"


def test_a_hundred_clients_at_once_get_each_their_own(proxy: ProxyDriver, place: Place, http_server: Server) -> None:
    ends = [connect(place.proxy_port) for _ in range(100)]
    try:
        for number, end in enumerate(ends):
            end.sendall(_get(http_server, f"/bytes/{number + 1}"))
        for number, end in enumerate(ends):
            assert f"Content-Length: {number + 1}\r\n".encode() in receive_head(end)
            assert len(receive(end, number + 1)) == number + 1
    finally:
        for end in ends:
            end.close()


@pytest.mark.parametrize("tunnelled", [False, True])
def test_a_kept_connection_ends_cleanly_with_its_client(proxy: ProxyDriver, tunnelled: bool) -> None:
    """Without a reset, which servers would write into their logs."""
    ends: queue.Queue[bytes] = queue.Queue()

    def talk(connection: socket.socket) -> None:
        hear_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
        ends.put(connection.recv(1))

    with serving(talk) as server:
        place = proxy.open(server.rule(NAME), addresses={NAME: "127.0.0.1"})
        with tunnel(place, NAME, server.port) if tunnelled else connect(place.proxy_port) as end:
            host = server.rule(NAME)
            end.sendall(f"GET {'' if tunnelled else f'http://{host}'}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            receive_head(end)
            receive(end, 1)
        assert ends.get(timeout=WAIT_SECONDS) == b""
