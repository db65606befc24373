"""Ways around the look at a tunnel's first bytes, each with what comes of it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trustme

from tests.network.hellos import hello
from tests.network.proxies import Place, ProxyDriver, connect, receive, receive_all, tunnel
from tests.network.routes import http_serving
from tests.network.servers import Server, certified, serving

NAME, OTHER = "api.example", "evil.example"
ADDRESSES = {NAME: "127.0.0.1"}
VALUE, PLACEHOLDER = "s3cretT0ken", "ramet_secret_0123456789abcdef0123456789abcdef"
WARNING = b"\x15\x03\x01\x00\x02\x01\x5a"  # an alert: user_canceled


def _place(proxy: ProxyDriver, server: Server, *more: str) -> Place:
    secret = {"value": VALUE, "placeholders": [PLACEHOLDER], "hosts": [server.rule(NAME)], "query": ["key"]}
    return proxy.open(server.rule(NAME), *more, addresses=ADDRESSES, secrets=[secret])


@contextmanager
def _dropping_warnings(context: ssl.SSLContext, said: list[str]) -> Iterator[Server]:
    """As servers written in Go do with warnings before a hello."""

    def talk(connection: socket.socket) -> None:
        while connection.recv(1, socket.MSG_PEEK) == WARNING[:1]:
            receive(connection, len(WARNING))
        with context.wrap_socket(connection, server_side=True) as inside:
            said.append(inside.recv(1000).decode())

    with serving(talk) as server:
        yield server


@pytest.mark.parametrize("version", [b"\x03\x01", b"\x02\x00"])
@pytest.mark.parametrize("cut", [1, 2, 5, len(WARNING)])
def test_a_warning_before_a_hello_does_not_hide_the_name_in_it(
    proxy: ProxyDriver, authority: trustme.CA, cut: int, version: bytes
) -> None:
    said: list[str] = []
    with _dropping_warnings(certified(authority), said) as server:
        place = proxy.open(server.rule(NAME), addresses=ADDRESSES)
        with tunnel(place, NAME, server.port) as end:
            warning = WARNING[:1] + version + WARNING[3:]
            end.sendall(warning[:cut])
            # Not by `wrap_socket`, which leaves a socket open if the proxy has hung up before it looks.
            try:
                end.sendall(warning[cut:])
                end.sendall(hello(OTHER))
                answer = end.recv(1)
            except OSError:
                answer = b""
            assert answer == b""
        assert "TLS cannot be read" in str(proxy.last(place)["reason"])
    assert said == []


@pytest.mark.parametrize(
    "first", [b"GET /stored\r\n", b"GET /stored", b"\x00\r\n", b"\x80\x2e\x01", b"\r\n", b"EHLO x\r\n"]
)
def test_a_host_with_secrets_is_spoken_to_in_http_and_tls_alone(proxy: ProxyDriver, first: bytes) -> None:
    """HTTP/0.9 has no version in its line: its answer would go by unmasked."""
    heard: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        heard.append(connection.recv(1000))
        connection.sendall(VALUE.encode())

    with serving(talk, "http") as server, tunnel(_place(proxy, server), NAME, server.port) as end:
        end.sendall(first)
        try:
            end.shutdown(socket.SHUT_WR)
            answer = receive_all(end)
        except OSError:  # it was reset, before the one or the other
            answer = b""
        assert VALUE.encode() not in answer
    assert set(heard) <= {b""}


def test_a_request_in_small_pieces_to_a_host_with_secrets_is_waited_for(proxy: ProxyDriver) -> None:
    with http_serving() as server, tunnel(_place(proxy, server), NAME, server.port) as end:
        host = server.rule(NAME)
        for byte in f"GET /echo?key={PLACEHOLDER} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode():
            end.sendall(bytes([byte]))
        assert b"*" * len(VALUE) in receive_all(end)


def test_a_host_with_secrets_is_not_reached_by_its_address_around_the_masking(
    proxy: ProxyDriver, https_server: Server, authority_pem: str
) -> None:
    place = _place(proxy, https_server, https_server.rule())
    with tunnel(place, "127.0.0.1", https_server.port) as end:
        with pytest.raises(OSError, match=r"reset|EOF|violation"):
            ssl.create_default_context(cadata=authority_pem).wrap_socket(end, server_hostname=NAME)
    assert "connect to it by its name" in str(proxy.last(place)["reason"])


def test_a_request_line_that_is_too_long_is_not_taken_for_something_else(proxy: ProxyDriver) -> None:
    """Some servers take lines of a megabyte, and would be told any Host behind one."""
    heard: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        heard.append(connection.recv(1000))

    with serving(talk, "http") as server:
        place = proxy.open(server.rule(NAME), addresses=ADDRESSES)
        with tunnel(place, NAME, server.port) as end:
            end.sendall(b"GET /" + b"a" * 66_000)
            assert receive_all(end).startswith(b"HTTP/1.1 400 ")
    assert set(heard) <= {b""}


def test_a_name_that_a_program_makes_up_writes_no_lines_into_the_log(proxy: ProxyDriver) -> None:
    place = proxy.open("a.example")
    name = b"x\n\x1b[2Jgood.example allowed\x7f"
    with connect(place.proxy_port) as end:
        end.sendall(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + b"\x00\x50")
        assert receive(end, 4) == b"\x05\x00\x05\x02"
    entry = proxy.last(place)
    assert entry["host"] == "x??[2Jgood.example allowed?"
    assert str(entry["reason"]).isprintable()
