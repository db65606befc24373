"""Requests that are refused, each with what its sender is told, and what is left of those that are passed on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network.http_talk import answering, ask, say
from tests.network.proxies import NAME, Place, ProxyDriver, connect, receive_all, receive_head, tunnel
from tests.network.routes import http_serving
from tests.network.servers import Server


@pytest.fixture(scope="module")
def place(proxy: ProxyDriver, http_server: Server) -> Place:
    return proxy.open(http_server.rule(NAME), addresses={NAME: "127.0.0.1"})


@pytest.fixture
def nothing_arrives(http_server: Server) -> Iterator[None]:
    before = len(http_server.requests)
    yield
    assert len(http_server.requests) == before


_REFUSED = [
    (b"GET / HTTP/1.1\r\nHost: <H>\r\n\r\n", "asks a proxy for a path alone"),
    (b"OPTIONS * HTTP/1.1\r\nHost: <H>\r\n\r\n", "asks a proxy for a path alone"),
    (b"GET https://<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "use CONNECT"),
    (b"GET HTTPS://<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "use CONNECT"),
    (b"GET ftp://<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "not an http:// URL"),
    (b"GET <H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "not an http:// URL"),
    (b"GET http:///path HTTP/1.1\r\nHost: <H>\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://user@<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "a user's name in its URL"),
    (b"GET http://user:word@<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "a user's name in its URL"),
    (b"GET http://<H>@other.example/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "a user's name in its URL"),
    (b"GET http://<H>\\@other.example/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "a user's name in its URL"),
    (b"GET http://other.example\\.<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://<H>#@other.example/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "'#'"),
    (b"GET http://<H>/#a HTTP/1.1\r\nHost: <H>\r\n\r\n", "'#'"),
    (b"GET http://data.example: HTTP/1.1\r\nHost: data.example\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://data.example:0/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://data.example:99999/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://data.example:80a/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://data%2eexample/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "neither a name nor an address"),
    (b"GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n\r\n", "neither a name nor an address"),
    (b"GET http://0x7f.1/ HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n", "neither a name nor an address"),
    (b"GET http://127.1/ HTTP/1.1\r\nHost: 127.1\r\n\r\n", "neither a name nor an address"),
    (b"GET http://[::1%25lo]/ HTTP/1.1\r\nHost: a\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://::1/ HTTP/1.1\r\nHost: a\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://<H>/ HTTP/1.1\r\n\r\n", "has no Host"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>\r\nHost: <H>\r\n\r\n", "more than one Host"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: other.example\r\n\r\n", "not the host that it goes to"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: data.example\r\n\r\n", "not the host that it goes to"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>, other.example\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost:\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost : <H>\r\n\r\n", "'name: value'"),
    (
        b"POST http://<H>/ HTTP/1.1\r\nHost: <H>\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "both",
    ),
    (b"POST http://<H>/ HTTP/1.1\r\nHost: <H>\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", "more than one"),
    (b"POST http://<H>/ HTTP/1.1\r\nHost: <H>\r\nContent-Length: 5, 5\r\n\r\nabcde", "not a number"),
    (b"POST http://<H>/ HTTP/1.1\r\nHost: <H>\r\nContent-Length: 1e1\r\n\r\nabcde", "not a number"),
    (b"POST http://<H>/ HTTP/1.1\r\nHost: <H>\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "is not 'chunked'"),
    (
        b"POST http://<H>/ HTTP/1.0\r\nHost: <H>\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 does not have",
    ),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>\r\nA: b\r\n c\r\n\r\n", "continues on a second line"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>\r\nA: b\nC: d\r\n\r\n", "CR LF"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>\r\nA: b\rC: d\r\n\r\n", "CR LF"),
    (b"GET http://<H>/ HTTP/1.1\nHost: <H>\n\n", "CR LF"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>\r\nA: \x00\r\n\r\n", "control character"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>\r\nA: \x1b[2J\r\n\r\n", "control character"),
    (b"GET http://<H>/\x01 HTTP/1.1\r\nHost: <H>\r\n\r\n", "the request line is not"),
    (b"get http://<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "the method is not valid"),
    (b"TRACE http://<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "this method"),
    (b"GET http://<H>/\r\n", "HTTP/0.9"),
    (b"GET http://<H>/ HTTP/2.0\r\nHost: <H>\r\n\r\n", "neither HTTP/1.1 nor HTTP/1.0"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2 in the clear"),
    (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", "does not begin as a request"),
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>\r\nA: " + b"b" * 70_000 + b"\r\n\r\n", "longer than 65536 bytes"),
    (b"GET http://<H>/" + b"a" * 70_000, "longer than 65536 bytes"),
    (b"CONNECT data.example HTTP/1.1\r\nHost: data.example\r\n\r\n", "without a port"),
    (b"CONNECT http://<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "is not 'name' or 'name:port'"),
    (b"CONNECT user@<H> HTTP/1.1\r\nHost: <H>\r\n\r\n", "a user's name"),
    (b"CONNECT <H> HTTP/1.1\r\nHost: other.example\r\n\r\n", "not the host that it goes to"),
    (b"CONNECT <H> HTTP/1.1\r\nHost: <H>\r\nContent-Length: 5\r\n\r\nabcde", "has a body"),
    (b"CONNECT <H> HTTP/1.1\r\nHost: <H>\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "has a body"),
]


@pytest.mark.usefixtures("nothing_arrives")
@pytest.mark.parametrize(("raw", "why"), _REFUSED)
def test_a_request_that_is_odd_is_refused_with_400_and_the_reason(
    place: Place, http_server: Server, raw: bytes, why: str
) -> None:
    answer = ask(place, raw.replace(b"<H>", http_server.rule(NAME).encode()))
    assert answer.status == 400
    assert why in answer.text
    assert why in answer.reason
    assert answer.fields["connection"] == "close"
    assert answer.fields["content-type"].startswith("text/plain")


_REFUSED_IN_TUNNELS = [
    (b"GET http://<H>/ HTTP/1.1\r\nHost: <H>\r\n\r\n", "not a path"),
    (b"GET * HTTP/1.1\r\nHost: <H>\r\n\r\n", "not a path"),
    (b"GET /#a HTTP/1.1\r\nHost: <H>\r\n\r\n", "not a path"),
    (b"GET / HTTP/1.1\r\n\r\n", "has no Host"),
    (b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", "not the host that it goes to"),
    (b"GET / HTTP/1.1\r\nHost: data.example:1\r\n\r\n", "not the host that it goes to"),
    (b"GET / HTTP/1.1\r\nHost: <H>\r\nHost: other.example\r\n\r\n", "more than one Host"),
    (b"CONNECT <H> HTTP/1.1\r\nHost: <H>\r\n\r\n", "inside of another one"),
    (b"GET / HTTP/1.1\r\nHost: <H>\r\nA: b\r\n c\r\n\r\n", "second line"),
]


@pytest.mark.usefixtures("nothing_arrives")
@pytest.mark.parametrize(("raw", "why"), _REFUSED_IN_TUNNELS)
def test_a_request_in_a_tunnel_is_held_to_the_host_of_the_tunnel(
    place: Place, http_server: Server, raw: bytes, why: str
) -> None:
    with tunnel(place, NAME, http_server.port) as end:
        end.sendall(raw.replace(b"<H>", http_server.rule(NAME).encode()))
        answer = receive_all(end).decode()
    assert answer.startswith("HTTP/1.1 400 ")
    assert why in answer


def test_requests_in_a_tunnel_are_served_one_after_the_other(proxy: ProxyDriver) -> None:
    with http_serving() as server:  # of its own: a connection of another test may come late
        place = proxy.open(server.rule(NAME), addresses={NAME: "127.0.0.1"})
        host = server.rule(NAME).encode()
        with tunnel(place, NAME, server.port) as end:
            for named in (host, NAME.encode(), host.upper()):
                end.sendall(b"GET /bytes/3 HTTP/1.1\r\nHost: " + named + b"\r\n\r\n")
                assert receive_head(end).startswith(b"HTTP/1.1 200 OK")
                assert end.recv(3) == bytes(range(3))
            end.sendall(b"OPTIONS * HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            assert receive_head(end).startswith(b"HTTP/1.1 404")
        assert server.connections == 1
        assert server.requests[-1].target == "*"


def test_a_host_in_no_rule_is_refused_with_403_that_says_what_the_owner_can_do(place: Place) -> None:
    answer = ask(place, b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n")
    assert (answer.status, answer.reason) == (403, "other.example:80 is in no rule of this sandbox")
    assert 'sandbox.network.allow("other.example:80")' in answer.text


def test_a_name_that_leads_to_nothing_is_refused_with_502(proxy: ProxyDriver) -> None:
    place = proxy.open("nowhere.invalid")
    answer = ask(place, b"GET http://nowhere.invalid/ HTTP/1.1\r\nHost: nowhere.invalid\r\n\r\n")
    assert answer.status == 502
    assert "nowhere.invalid" in answer.reason


def test_a_port_that_nobody_listens_on_is_refused_with_502(proxy: ProxyDriver) -> None:
    place = proxy.open(f"{NAME}:1", addresses={NAME: "127.0.0.1"})
    answer = ask(place, b"GET http://data.example:1/ HTTP/1.1\r\nHost: data.example:1\r\n\r\n")
    assert answer.status == 502
    assert "data.example port 1 cannot be reached" in answer.reason


def test_one_connection_too_many_is_refused_with_429(proxy: ProxyDriver, http_server: Server) -> None:
    place = proxy.open(http_server.rule(NAME), addresses={NAME: "127.0.0.1"}, connections=1)
    with tunnel(place, NAME, http_server.port):
        answer = ask(place, _get(http_server, "/bytes/1"))
    assert answer.status == 429
    assert "Network(connections=...)" in answer.text


def test_bytes_that_are_used_up_are_refused_with_403(proxy: ProxyDriver, http_server: Server) -> None:
    place = proxy.open(http_server.rule(NAME), addresses={NAME: "127.0.0.1"}, total_bytes=2000)
    try:
        answer = ask(place, _get(http_server, "/bytes/9000"))
        assert answer.status == 403  # all of it came at once, and nothing of it was passed on yet
    except ConnectionResetError:
        pass  # some of it was
    answer = ask(place, _get(http_server, "/bytes/1"))
    assert answer.status == 403
    assert "has used the 2000 bytes" in answer.reason
    assert "Network(total_bytes=...)" in answer.text


def test_a_client_goes_on_after_a_refusal_on_the_same_connection(place: Place, http_server: Server) -> None:
    refused = b"POST http://other.example/ HTTP/1.1\r\nHost: other.example\r\nContent-Length: 5\r\n\r\nabcde"
    answers = say(place, refused + refused + _get(http_server, "/bytes/1"))
    assert answers.count(b"HTTP/1.1 403 ") == 2
    assert answers.count(b"HTTP/1.1 200 OK") == 1


def test_a_refusal_reaches_a_client_that_is_still_sending(place: Place) -> None:
    head = b"POST http://other.example/ HTTP/1.1\r\nHost: other.example\r\nContent-Length: 900000\r\n\r\n"
    answer = ask(place, head + b"x" * 900_000)
    assert answer.status == 403
    assert answer.fields["connection"] == "close"


def test_what_is_between_two_hops_is_not_passed_on_and_nothing_is_added(proxy: ProxyDriver) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n"
                   b"Connection: X-Hop\r\nX-Hop: 1\r\nVia: 1.1 other\r\n\r\n") as (server, heard):  # fmt: skip
        place = proxy.open(server.rule(NAME), addresses={NAME: "127.0.0.1"})
        host = server.rule(NAME).encode()
        answer = ask(
            place,
            b"GET http://" + host + b"/a?b HTTP/1.1\r\nhost: " + host + b"\r\nProxy-Connection: keep-alive\r\n"
            b"Proxy-Authorization: Basic eA==\r\nConnection: close, X-Mine\r\nx-mine: 1\r\nTE: trailers\r\n"
            b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nKeep-Alive: 5\r\nX-Kept:  a b \r\nTrailer: A\r\n\r\n",
        )
    assert heard.heads == [b"GET /a?b HTTP/1.1\r\nHost: " + host + b"\r\nX-Kept: a b\r\n\r\n"]
    assert answer.fields == {"content-length": "0", "via": "1.1 other", "connection": "close"}


def test_a_connection_option_cannot_take_away_what_frames_a_request(proxy: ProxyDriver) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (server, heard):
        place = proxy.open(server.rule(NAME), addresses={NAME: "127.0.0.1"})
        host = server.rule(NAME).encode()
        head = b"POST http://" + host + b"/ HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 3\r\n"
        ask(place, head + b"Connection: close, Host, Content-Length\r\n\r\nabc")
    assert heard.heads == [b"POST / HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 3\r\n\r\n"]


def test_a_path_that_is_left_out_is_a_slash(place: Place, http_server: Server) -> None:
    host = http_server.rule(NAME)
    for target, seen in ((f"http://{host}", "/"), (f"http://{host}?a=b", "/?a=b"), (f"HTTP://{host.upper()}/A", "/A")):
        ask(place, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert http_server.requests[-1].target == seen


def test_a_client_that_says_half_a_head_and_leaves_is_nobody_to_answer(place: Place) -> None:
    assert say(place, b"GET http://data.exa") == b""
    with connect(place.proxy_port) as end:
        end.sendall(b"GET ")


def _get(server: Server, path: str) -> bytes:
    host = server.rule(NAME)
    return f"GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
