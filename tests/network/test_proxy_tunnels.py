"""Tunnels through the proxy: what a program says first decides what may pass, and the rest passes as it is."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator

import pytest
import trustme

from tests.network.hellos import hello, with_extension
from tests.network.proxies import (
    NAME,
    PINNED,
    ProxyDriver,
    connect,
    receive,
    receive_all,
    receive_head,
    refused,
    spec_of,
    tunnel,
)
from tests.network.servers import BANNER, Server, serving


@pytest.fixture
def tunnel_to(proxy: ProxyDriver) -> Iterator[Callable[[Server], socket.socket]]:
    """Makes a tunnel to a server by the name above, in a sandbox that may reach it and nothing else."""
    made: list[socket.socket] = []

    def make(server: Server) -> socket.socket:
        made.append(tunnel(proxy.open(server.rule(NAME), addresses=PINNED), NAME, server.port))
        return made[-1]

    yield make
    for end in made:
        end.close()


def assert_reset(end: socket.socket) -> None:
    """With nothing before it."""
    with pytest.raises(ConnectionResetError):
        assert end.recv(100) == b""


def test_bytes_go_both_ways_and_each_direction_ends_by_itself(
    tunnel_to: Callable[[Server], socket.socket], echo_server: Server
) -> None:
    end = tunnel_to(echo_server)
    end.sendall(b"\x00one")
    assert receive(end, 4) == b"\x00one"
    end.sendall(b"two")
    end.shutdown(socket.SHUT_WR)
    assert receive_all(end) == b"two"


def test_a_server_that_speaks_first_is_heard_at_once(
    tunnel_to: Callable[[Server], socket.socket], banner_server: Server
) -> None:
    end = tunnel_to(banner_server)
    assert receive(end, len(BANNER)) == BANNER
    end.sendall(b"EHLO me\r\n")
    assert receive(end, 9) == b"EHLO me\r\n"


@pytest.mark.parametrize(
    "first", [b"hello", b"GET key\r\n", b"\r\n", b"\x00\x00\x00\x08\x04\xd2\x16\x2f", b"a" * 300_000]
)
def test_what_is_neither_tls_nor_http_passes_as_it_is(
    tunnel_to: Callable[[Server], socket.socket], echo_server: Server, first: bytes
) -> None:
    end = tunnel_to(echo_server)
    end.sendall(first)
    assert receive(end, len(first)) == first


def test_a_megabyte_each_way_arrives_whole(tunnel_to: Callable[[Server], socket.socket], echo_server: Server) -> None:
    end = tunnel_to(echo_server)
    data = bytes(range(256)) * 4096
    got = b""
    for at in range(0, len(data), 65536):
        end.sendall(data[at : at + 65536])
        got += receive(end, len(data[at : at + 65536]))
    assert got == data


def test_tls_to_the_host_that_was_asked_for_passes(
    tunnel_to: Callable[[Server], socket.socket], https_server: Server, authority: trustme.CA
) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with context.wrap_socket(tunnel_to(https_server), server_hostname=NAME) as tls:
        tls.sendall(f"GET /bytes/10 HTTP/1.1\r\nHost: {NAME}:{https_server.port}\r\nConnection: close\r\n\r\n".encode())
        assert receive_all(tls).startswith(b"HTTP/1.1 200 ")


def test_a_hello_that_comes_in_many_pieces_is_understood(
    tunnel_to: Callable[[Server], socket.socket], echo_server: Server
) -> None:
    end = tunnel_to(echo_server)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    said = hello(NAME.upper())
    for at in range(len(said)):
        end.sendall(said[at : at + 1])
    assert receive(end, len(said)) == said


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (hello("other.example"), "other.example"),
        (hello(None), "names no server"),
        (with_extension(hello(NAME), 0xFE0D, b"x"), "encrypted client hello"),
        (with_extension(hello(NAME), 0, b"\0\x03\0\0\0"), "given twice"),
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", "cannot be read"),
        (b"\x16\x03\x01\xff\xff" + b"x" * 100, "cannot be read"),
        (b"\x80\x2e\x01\x03\x01" + b"x" * 50, "cannot be read"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
    ],
    ids=["other name", "no name", "hidden name", "two names", "no hello", "odd record", "old hello", "http2"],
)
def test_what_could_lead_elsewhere_is_reset_and_logged(
    proxy: ProxyDriver, echo_server: Server, first: bytes, reason: str
) -> None:
    place = proxy.open(echo_server.rule(NAME), addresses=PINNED)
    with tunnel(place, NAME, echo_server.port) as end:
        end.sendall(first)
        assert_reset(end)
    entry = proxy.last(place)
    assert (entry["allowed"], entry["open"], entry["sent"]) == (False, False, 0)
    assert reason in str(entry["reason"])


def test_http_in_a_tunnel_is_held_to_the_host_of_the_tunnel(proxy: ProxyDriver, http_server: Server) -> None:
    place = proxy.open(http_server.rule(NAME), addresses=PINNED)
    with tunnel(place, NAME, http_server.port) as end:
        end.sendall(f"GET /bytes/3 HTTP/1.1\r\nHost: {NAME}:{http_server.port}\r\n\r\n".encode())
        assert receive_head(end).startswith(b"HTTP/1.1 200 ")
        receive(end, 3)
        end.sendall(b"GET /bytes/3 HTTP/1.1\r\nHost: other.example\r\n\r\n")
        assert receive_head(end).startswith(b"HTTP/1.1 400 ")
    assert [entry["allowed"] for entry in proxy.log(place)] == [True, False]


@pytest.mark.parametrize("first", [b"\r\n\r\nGET / HTTP/1.1\r\n", b"get / http/1.1\n", b"BREW /\tHTTP/1.1\r\n"])
def test_http_that_is_written_oddly_is_still_taken_for_http(
    tunnel_to: Callable[[Server], socket.socket], echo_server: Server, first: bytes
) -> None:
    end = tunnel_to(echo_server)
    end.sendall(first + b"Host: other.example\r\n\r\n")
    assert receive_head(end).startswith(b"HTTP/1.1 400 ")


def test_a_request_in_pieces_does_not_slip_through_as_something_else(proxy: ProxyDriver) -> None:
    heard: list[bytes] = []
    with serving(lambda end: heard.append(receive_all(end)) if end else None) as server:
        place = proxy.open(server.rule(NAME), addresses=PINNED)
        with tunnel(place, NAME, server.port) as end:
            end.sendall(b"GET / HT")
            # The beginning goes on after a moment, as of something that is no HTTP.
            proxy.wait_for_entry(place, lambda entry: entry.get("sent") == 8)
            end.sendall(b"TP/1.1\r\nHost: other.example\r\n\r\n")
            assert_reset(end)
        assert proxy.last(place)["sent"] == 8


def test_connect_by_an_address_that_is_listed_needs_no_server_name(proxy: ProxyDriver, echo_server: Server) -> None:
    place = proxy.open(echo_server.rule("127.0.0.1"))
    for name in (None, "any.example"):
        with tunnel(place, "127.0.0.1", echo_server.port) as end:
            said = hello(name)
            end.sendall(said)
            assert receive(end, len(said)) == said


def test_a_denied_name_is_denied_in_tls_to_an_address_too(proxy: ProxyDriver, echo_server: Server) -> None:
    rule = echo_server.rule("127.0.0.1")
    place = proxy.open(rule, open=True, deny=["bad.example:*"])
    with tunnel(place, "127.0.0.1", echo_server.port) as end:
        end.sendall(hello("bad.example"))
        assert_reset(end)
    assert "bad.example:*" in str(proxy.last(place)["reason"])


def test_a_refusal_says_what_and_why_and_what_the_owner_can_do(proxy: ProxyDriver) -> None:
    place = proxy.open(NAME)
    answer = refused(place, "other.example", 443)
    assert answer.startswith("HTTP/1.1 403 ")
    assert "other.example:443 is in no rule" in answer.splitlines()[0]
    assert 'network.allow("other.example:443")' in answer
    assert proxy.last(place)["allowed"] is False


def test_a_port_that_nobody_listens_on_is_a_bad_gateway(proxy: ProxyDriver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    place = proxy.open(f"{NAME}:{port}", addresses=PINNED)
    assert refused(place, NAME, port).startswith("HTTP/1.1 502 ")
    assert "refused" in str(proxy.last(place)["reason"])


def test_rules_that_change_cut_what_they_deny_and_leave_the_rest(proxy: ProxyDriver, echo_server: Server) -> None:
    rule = echo_server.rule(NAME)
    both = {**PINNED, "other.example": "127.0.0.1"}
    place = proxy.open(rule, echo_server.rule("other.example"), addresses=both)
    with tunnel(place, NAME, echo_server.port) as end, tunnel(place, "other.example", echo_server.port) as other:
        for one in (end, other):
            one.sendall(b"\0here")
            receive(one, 5)
        proxy.change(place, spec_of(echo_server.rule("other.example"), deny=[rule], addresses=both))
        assert_reset(end)
        other.sendall(b"\0more")
        assert receive(other, 5) == b"\0more"
    assert refused(place, NAME, echo_server.port).startswith("HTTP/1.1 403 ")
    assert any(str(entry["reason"]).startswith(f"{rule} is denied") for entry in proxy.log(place))


def test_closing_a_sandbox_resets_its_connections_and_nobody_elses(proxy: ProxyDriver, echo_server: Server) -> None:
    place, other = (proxy.open(echo_server.rule(NAME), addresses=PINNED) for _ in range(2))
    with tunnel(place, NAME, echo_server.port) as end, tunnel(other, NAME, echo_server.port) as kept:
        idle = connect(place.proxy_port)
        proxy.tell({"do": "close", "id": place.id})
        assert_reset(end)
        with pytest.raises(ConnectionResetError):
            receive_all(idle)
        idle.close()
        kept.sendall(b"\0still")
        assert receive(kept, 6) == b"\0still"
    entry = proxy.log(place)[0]
    assert (entry["open"], entry["reason"]) == (False, "the sandbox has ended")
    with pytest.raises(ConnectionRefusedError):
        connect(place.proxy_port)


def test_what_a_reset_server_has_done_is_not_taken_for_an_end(proxy: ProxyDriver) -> None:
    def reset(end: socket.socket) -> None:
        end.recv(1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with serving(reset) as server:
        place = proxy.open(server.rule(NAME), addresses=PINNED)
        with tunnel(place, NAME, server.port) as end:
            end.sendall(b"\0")
            assert_reset(end)
