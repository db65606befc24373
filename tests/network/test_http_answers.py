"""Servers that answer badly, which no client may be led astray by; and all the usual ways in which a body ends."""

from __future__ import annotations

import socket

import pytest

from tests.network.http_talk import Heard, answering, ask, hear_head, read_answer, say, scripted
from tests.network.proxies import (
    NAME,
    Place,
    ProxyDriver,
    connect,
    receive,
    receive_all,
    receive_head,
    spec_of,
)
from tests.network.servers import Server, serving


def _place(proxy: ProxyDriver, server: Server) -> Place:
    return proxy.open(server.rule(NAME), addresses={NAME: "127.0.0.1"})


def _request(server: Server, path: str = "/", method: str = "GET", version: str = "1.1", more: str = "") -> bytes:
    host = server.rule(NAME)
    return f"{method} http://{host}{path} HTTP/{version}\r\nHost: {host}\r\n{more}\r\n".encode()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"220 mail.example\r\n\r\n", "the status line"),
        (b"HTTP/2 200 OK\r\n\r\n", "the status line"),
        (b"HTTP/1.1 999 OK\r\n\r\n", "the status line"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "the status line"),
        (b"HTTP/1.1  200 OK\r\n\r\n", "the status line"),
        (b"HTTP/1.1 200 O\x00K\r\n\r\n", "the status line"),
        (b"HTTP/1.1 200 OK\nContent-Length: 0\n\r\n\r\n", "the status line"),
        (b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "the status line"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "second line"),
        (b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", "CR LF"),
        (b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "'name: value'"),
        (b"HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n", "control character"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "both"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", "more than one"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "not a number"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "is not 'chunked'"),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0 does not have"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "did not ask for"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n", "longer than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000, "longer than 65536 bytes"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 200, "again and again"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "in the middle of a head"),
        (b"", "ended before an answer came"),
    ],
)
def test_an_answer_that_is_odd_is_not_passed_on_but_told_with_502(proxy: ProxyDriver, raw: bytes, why: str) -> None:
    with answering(raw) as (server, _):
        answers = say(_place(proxy, server), _request(server))
    last = read_answer(answers[answers.index(b"HTTP/1.1 502") :])
    assert why in last.reason
    assert why in last.text
    assert server.rule(NAME) in last.reason


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdeX\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\nA : b\r\n\r\n",
    ],
)
def test_half_of_an_answer_never_looks_like_a_whole_one(proxy: ProxyDriver, raw: bytes) -> None:
    with answering(raw) as (server, _), connect(_place(proxy, server).proxy_port) as end:
        end.sendall(_request(server))
        with pytest.raises(ConnectionResetError):
            receive_all(end)


def test_bytes_behind_an_answer_are_not_taken_for_the_next_one(proxy: ProxyDriver) -> None:
    """A server that sends two answers for one request gets a connection of its own for the next."""
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    with answering(evil, evil) as (server, heard):
        answers = say(_place(proxy, server), _request(server, "/1") + _request(server, "/2"))
        assert answers.count(b"HTTP/1.1 200 OK") == 2
        assert b"evil" not in answers
        assert heard.connections == 2


@pytest.mark.parametrize(
    ("raw", "fields", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", {"content-length": "3"}, b"abc"),
        (b"HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nabc", {"content-length": "3"}, b"abc"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", {"content-length": "3"}, b"abc"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n2\r\nbc\r\n0\r\nA: b\r\n\r\n",
            {"transfer-encoding": "chunked"},
            b"3\r\nabc\r\n0\r\n\r\n",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", {"transfer-encoding": "chunked"}, b"3\r\nabc\r\n0\r\n\r\n"),
        (b"HTTP/1.1 204 None\r\n\r\n", {}, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", {"content-length": "9"}, b""),
    ],
)
def test_a_body_ends_where_the_server_said_it_ends(
    proxy: ProxyDriver, raw: bytes, fields: dict[str, str], body: bytes
) -> None:
    with answering(raw) as (server, _):
        answer = ask(_place(proxy, server), _request(server))
    assert (answer.fields, answer.body) == (fields, body)


def test_a_head_asked_for_alone_has_no_body_behind_it(proxy: ProxyDriver) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
    with answering(raw, raw) as (server, heard):
        answers = say(_place(proxy, server), _request(server, method="HEAD") * 2)
    assert answers == raw * 2
    assert heard.connections == 1


@pytest.mark.parametrize(
    "raw",
    [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nabc"],
)
def test_a_client_of_http_1_0_gets_no_chunks(proxy: ProxyDriver, raw: bytes) -> None:
    with answering(raw) as (server, heard):
        answer = ask(_place(proxy, server), _request(server, version="1.0"))
    assert (answer.fields, answer.body) == ({"connection": "close"}, b"abc")
    assert heard.heads[0].startswith(b"GET / HTTP/1.1\r\n")


def test_words_before_the_answer_are_passed_on(proxy: ProxyDriver) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    with answering(hints + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (server, _):
        place = _place(proxy, server)
        assert say(place, _request(server)) == hints + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        assert ask(place, _request(server, version="1.0")).status == 200


def test_a_request_goes_out_again_when_a_kept_connection_has_been_closed_meanwhile(proxy: ProxyDriver) -> None:
    """The server closes each connection on the second request that it hears, without a word."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with answering(ok, b"") as (server, heard), connect(_place(proxy, server).proxy_port) as end:
        for _ in range(3):
            end.sendall(_request(server))
            assert receive_head(end) == ok
    assert heard.connections == 3


def test_a_post_goes_out_once_whatever_becomes_of_it(proxy: ProxyDriver) -> None:
    """Its sender sees what it would have seen without us: a kept connection that was closed."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with answering(ok, b"") as (server, heard), connect(_place(proxy, server).proxy_port) as end:
        end.sendall(_request(server))
        assert receive_head(end) == ok
        end.sendall(_request(server, method="POST", more="Content-Length: 3\r\n") + b"abc")
        assert receive_all(end) == b""
    assert [head.partition(b" ")[0] for head in heard.heads] == [b"GET", b"POST"]


def test_a_server_that_closed_between_two_requests_is_connected_to_again(proxy: ProxyDriver) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (server, heard):
        place = _place(proxy, server)
        with connect(place.proxy_port) as end:
            for method in ("GET", "POST"):
                more = "Content-Length: 0\r\n" if method == "POST" else ""
                end.sendall(_request(server, method=method, more=more))
                assert receive_head(end).startswith(b"HTTP/1.1 200 OK")
                proxy.wait_for_entry(place, lambda entry: entry["open"] is False)
                proxy.wait_for_entry(place, lambda entry: not any(one["open"] for one in proxy.log(place)))
    assert heard.connections == 2


def test_an_answer_that_comes_before_the_whole_request_is_passed_on_and_ends_the_connection(
    proxy: ProxyDriver,
) -> None:
    early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig"
    with answering(early) as (server, _), connect(_place(proxy, server).proxy_port) as end:
        end.sendall(_request(server, method="POST", more="Content-Length: 100000\r\n") + b"x" * 1000)
        answer = read_answer(receive_all(end))
    assert (answer.status, answer.body, answer.fields["connection"]) == (413, b"big", "close")


def test_a_server_that_answers_a_word_that_was_waited_for_gets_the_body_then(proxy: ProxyDriver) -> None:
    bodies: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        head = hear_head(connection)
        assert b"\r\nExpect: 100-continue\r\n" in head
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        bodies.append(receive(connection, 5))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with serving(talk) as server, connect(_place(proxy, server).proxy_port) as end:
        more = "Content-Length: 5\r\nExpect: 100-continue\r\n"
        end.sendall(_request(server, method="PUT", more=more))
        assert receive_head(end) == b"HTTP/1.1 100 Continue\r\n\r\n"
        end.sendall(b"abcde")
        assert receive_head(end).startswith(b"HTTP/1.1 200 OK")
    assert bodies == [b"abcde"]


def test_a_client_that_leaves_in_the_middle_of_its_body_takes_the_request_with_it(proxy: ProxyDriver) -> None:
    heard = Heard()
    with serving(scripted([b"", b""], heard)) as server:
        place = _place(proxy, server)
        assert say(place, _request(server, method="POST", more="Content-Length: 10\r\n") + b"abc") == b""
        proxy.wait_for_entry(place, lambda entry: entry["open"] is False)


def test_chunks_of_a_client_that_are_odd_are_refused_with_400(proxy: ProxyDriver) -> None:
    def talk(connection: socket.socket) -> None:
        hear_head(connection)
        while connection.recv(100):  # an end of the server's before that of the proxy would be the answer
            pass

    with serving(talk) as server, connect(_place(proxy, server).proxy_port) as end:
        end.sendall(_request(server, method="POST", more="Transfer-Encoding: chunked\r\n"))
        end.sendall(b"3\r\nabcXX")
        answer = read_answer(receive_all(end))
    assert answer.status == 400
    assert "longer than its size" in answer.reason


def test_a_connection_that_rules_cut_off_is_told_with_403(proxy: ProxyDriver) -> None:

    heard = Heard()

    def talk(connection: socket.socket) -> None:
        heard.heads.append(hear_head(connection))
        proxy.change(place, spec_of(addresses={NAME: "127.0.0.1"}))
        connection.recv(1)

    with serving(talk) as server:
        place = _place(proxy, server)
        answer = ask(place, _request(server))
    assert answer.status == 403
    assert "is in no rule of this sandbox" in answer.reason
