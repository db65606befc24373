"""Ways to get hold of a secret's value through a server that says what it is told, each with what comes of it."""

from __future__ import annotations

import html
import json
import socket
import string
from base64 import b64encode, encodebytes
from contextlib import ExitStack
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.network.http.heads import Malformed
from ramet.network.http.websocket_frames import MaskedFrames
from ramet.network.secrets.masking import Masker
from ramet.network.secrets.peer_secrets import HostSecrets, PeerSecret
from ramet.network.secrets.work_budget import SLICE_BYTES, TooAlike
from ramet.protocol.network.specs import read_rules
from tests.network.http_talk import ask, hear_head
from tests.network.proxies import Place, ProxyDriver, connect, receive, receive_all, receive_head
from tests.network.routes import http_serving, websocket_frame
from tests.network.servers import Server, serving

NAME = "api.example"
VALUE = "s3cretT0ken-Xyz/9+8="
PLACEHOLDER = "ramet_secret_0123456789abcdef0123456789abcdef"
EVERYWHERE: dict[str, object] = {"headers": ["X-Key"], "query": ["key"], "path": True, "body": True}


def _place(proxy: ProxyDriver, server: Server, value: str = VALUE) -> Place:
    secret = {"value": value, "placeholders": [PLACEHOLDER], "hosts": [server.rule(NAME)], **EVERYWHERE}
    return proxy.open(server.rule(NAME), addresses={NAME: "127.0.0.1"}, secrets=[secret])


def _request(server: Server, path: str, more: str = "") -> bytes:
    host = server.rule(NAME)
    return f"GET http://{host}/{path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


# Guesses: what is held back must not tell whether a value begins like that


def _repeating(connection: socket.socket) -> None:
    while head := hear_head(connection):
        said = head.split()[1][1:]
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(said) + said + b"\r\n")
        connection.sendall(b"0\r\n\r\n")


def test_the_pieces_of_an_answer_do_not_tell_whether_it_ends_as_a_value_begins(proxy: ProxyDriver) -> None:
    with serving(_repeating, "http") as server, connect(_place(proxy, server).proxy_port) as end:
        for right, wrong in (("s", "x"), ("s3cr", "s3cx"), (VALUE[:-1], VALUE[:-2] + "x"), ("%73%33", "%73%34")):
            seen = []
            for guess in (right, wrong):
                end.sendall(_request(server, guess))
                receive_head(end)
                body = b""
                while not body.endswith(b"0\r\n\r\n"):
                    body += receive(end, 1)
                seen.append(body.replace(guess.encode(), b"?"))
            assert seen[0] == seen[1]


@given(st.text(string.printable, max_size=60), st.integers(0, len(VALUE) - 1), st.booleans())
def test_what_is_held_back_depends_on_the_kind_of_characters_alone(before: str, length: int, in_base64: bool) -> None:
    spelled = b64encode(VALUE.encode()).decode() if in_base64 else VALUE
    guess = spelled[:length]
    swapped = guess.translate(str.maketrans("s3cretT0knXyz", "t4dsfuU1loYza"))
    released = [len(Masker([VALUE]).feed((before + end).encode())) for end in (guess, swapped)]
    assert released[0] == released[1]


@pytest.mark.parametrize("piece", [b"data: 1\n\n", b'{"a": 1}', b"<p>", b"a sentence. ", b"\x00\x01", b"log line\n"])
@pytest.mark.parametrize("value", [VALUE, "pa$$:w!rd"])
def test_events_that_end_in_what_few_values_have_go_on_at_once(piece: bytes, value: str) -> None:
    assert Masker([value]).feed(piece) == piece


# Spellings


def _spelled(value: str) -> dict[str, str]:
    return {
        "as it is": value,
        "PHP's JSON": json.dumps(value)[1:-1].replace("/", "\\/"),
        "Go's JSON": json.dumps(value)[1:-1].replace("&", "\\u0026").replace("<", "\\u003c"),
        "Gson's JSON": json.dumps(value)[1:-1].replace("=", "\\u003d").replace("'", "\\u0027"),
        "JSON in JSON": json.dumps(json.dumps(value)[1:-1])[1:-1],
        "encodeURIComponent": quote(value, safe="!'()*~"),
        "encodeURI": quote(value, safe=";,/?:@&=+$!'()*~#"),
        "a URL in a URL": quote(quote(value, safe=""), safe=""),
        "HTML": html.escape(value),
        "Go's HTML": html.escape(value, quote=False).replace("+", "&#43;").replace("'", "&#39;").replace('"', "&#34;"),
        "Mustache's HTML": html.escape(value).replace("/", "&#x2F;").replace("=", "&#x3D;").replace("`", "&#x60;"),
        "HTML in HTML": html.escape(html.escape(value)),
        "hexadecimal": value.encode().hex().upper(),
    }


@pytest.mark.parametrize("value", [VALUE, 'pass & word\'s <"end">!', "a%25b&amp;c", "geheim-ä€😀/x", "://user:pw@"])
def test_a_value_is_masked_as_libraries_spell_it(value: str) -> None:
    for spelling, text in _spelled(value).items():
        masked = Masker([value]).whole(b"<" + text.encode() + b">")
        assert masked == b"<" + b"*" * len(text.encode()) + b">", spelling


@pytest.mark.parametrize("value", ["s3cr3t", VALUE, "s3cr3t>?>?>?"])
@pytest.mark.parametrize("around", [b".", b"\xff", b"\xfb\xf0"])
def test_every_letter_of_base64_with_a_bit_of_a_value_is_masked_and_no_other(value: str, around: bytes) -> None:
    """What stands before it in a header of basic authentication is the guest's to choose."""
    for before in range(10):
        for behind in range(4):
            text = around * before + value.encode() + around * behind
            encoded = b64encode(text).rstrip(b"=")
            first, last = 8 * len(around) * before, 8 * (len(around) * before + len(value))
            wanted = bytes(
                ord("*") if 6 * at < last and 6 * at + 6 > first else letter for at, letter in enumerate(encoded)
            )
            assert Masker([value]).whole(encoded) == wanted
            masker = Masker([value])
            assert b"".join(masker.feed(bytes([byte])) for byte in encoded) + masker.finish() == wanted


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\\n", b"\\r\\n", b"\\\\n"])
@pytest.mark.parametrize("width", [60, 64, 76])
def test_base64_in_lines_is_masked_wherever_a_line_ends(line_end: bytes, width: int) -> None:
    """GitHub gives files like that, with line ends that JSON has escaped."""
    for before in range(80):
        encoded = b64encode(b"." * before + VALUE.encode() + b"." * 50)
        lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
        text = b'"' + line_end.join(lines) + b'"'
        masker = Masker([VALUE])
        in_pieces = b"".join(masker.feed(bytes([byte])) for byte in text) + masker.finish()
        assert Masker([VALUE]).whole(text) == in_pieces
        assert len(in_pieces) == len(text)
        assert in_pieces.count(b"*") >= len(b64encode(VALUE.encode()).rstrip(b"=")) - 3, before
    assert Masker([VALUE]).whole(encodebytes(VALUE.encode() * 3)).count(b"*") >= 78


@given(
    st.lists(st.sampled_from([*VALUE, VALUE, " ", "\n", quote(VALUE, safe=""), VALUE[:7]]), max_size=20),
    st.lists(st.integers(0, 5 * len(VALUE)), max_size=20),
)
def test_pieces_make_no_difference_to_masking(parts: list[str], cuts: list[int]) -> None:
    """Wherever they are cut, be it in the middle of a value."""
    whole = "".join(parts).encode()
    masker = Masker([VALUE])
    pieces = [whole[start:end] for start, end in pairwise([0, *sorted(cuts), len(whole)])]
    assert b"".join(map(masker.feed, pieces)) + masker.finish() == Masker([VALUE]).whole(whole)


def test_values_that_overlap_are_both_masked_to_their_ends() -> None:
    """A short value that somebody has guessed must not open the one that it is put before."""
    assert Masker(["ta", "abcdef"]).whole(b"<tabcdef>") == b"<*******>"
    assert Masker(["abab"]).whole(b"<ababab>") == b"<******>"
    masker = Masker(["ta", "abcdef"])
    assert b"".join(masker.feed(bytes([byte])) for byte in b"<tabcdef>") + masker.finish() == b"<*******>"


# Parts


@pytest.mark.parametrize("name", ["Range", "X-MS-Range", "Request-Range", "A-IM"])
def test_a_part_of_an_answer_cannot_be_asked_for(proxy: ProxyDriver, name: str) -> None:
    with http_serving() as server:
        ask(_place(proxy, server), _request(server, "echo", f"{name}: bytes=0-3\r\n"))
        assert server.requests[-1].header(name) is None


@pytest.mark.parametrize("status", [206, 226])
def test_a_part_of_an_answer_that_comes_all_the_same_is_not_passed_on(proxy: ProxyDriver, status: int) -> None:
    """A few letters of a value are not found, and there are servers that take a range from the query."""

    def partly(connection: socket.socket) -> None:
        hear_head(connection)
        part = VALUE[:4].encode()
        connection.sendall(b"HTTP/1.1 %d Part\r\nContent-Length: %d\r\n\r\n" % (status, len(part)) + part)

    with serving(partly, "http") as server, connect(_place(proxy, server).proxy_port) as end:
        end.sendall(_request(server, "x?range=0-3", "Connection: close\r\n"))
        answer = receive_all(end)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert VALUE[:4].encode() not in answer


# Websockets


def _switched(proxy: ProxyDriver, server: Server) -> socket.socket:
    end = connect(_place(proxy, server).proxy_port)
    end.sendall(_request(server, "", "Upgrade: websocket\r\nConnection: Upgrade\r\n"))
    assert receive_head(end).startswith(b"HTTP/1.1 101 ")
    return end


def _speaking(*said: bytes) -> Server:
    def talk(connection: socket.socket) -> None:
        hear_head(connection)
        connection.sendall(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        for data in said:
            connection.sendall(data)
        connection.recv(1)  # until the client has gone

    return Server(talk, "http")


def test_a_message_of_a_websocket_is_never_held_back(proxy: ProxyDriver) -> None:
    frames = b"".join(websocket_frame(1, VALUE[:length].encode()) for length in range(len(VALUE)))
    server = _speaking(frames)
    try:
        with _switched(proxy, server) as end:
            assert receive(end, len(frames)) == frames
    finally:
        server.close()


def test_a_value_in_two_parts_of_a_message_is_masked_around_a_ping() -> None:
    whole = VALUE.encode()
    first = bytes((0x01, 7)) + b"<" + whole[:6]
    ping = bytes((0x89, len(whole))) + whole
    last = bytes((0x80, len(whole) - 5)) + whole[6:] + b">"
    wanted = bytes((0x01, 7)) + b"<******" + bytes((0x89, len(whole))) + b"*" * len(whole)
    wanted += bytes((0x80, len(whole) - 5)) + b"*" * (len(whole) - 6) + b">"
    sent = first + ping + last
    for size in (1, 3, len(sent)):
        frames = MaskedFrames(Masker([VALUE]))
        assert b"".join(frames.feed(sent[at : at + size]) for at in range(0, len(sent), size)) == wanted


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=300)), max_size=6), st.integers(1, 40))
def test_other_messages_stay_as_they_are(messages: list[tuple[int, bytes]], size: int) -> None:
    sent = b"".join(websocket_frame(kind, data) for kind, data in messages)
    frames = MaskedFrames(Masker([VALUE]))
    assert b"".join(frames.feed(sent[at : at + size]) for at in range(0, len(sent), size)) == sent


@pytest.mark.parametrize(
    "said",
    [b"HTTP/1.1 200 OK\r\n", b"\xc1\x01a", b"\x81\x81aaaaa", b"\x83\x01a", b"\x09\x01a", b"\x89\x7e\x00\x80",
     b"\x80\x01a", b"\x01\x00\x01\x00"],
)  # fmt: skip
def test_what_is_no_frame_of_a_server_ends_the_websocket(proxy: ProxyDriver, said: bytes) -> None:
    """Also a server that only said it would speak websockets: an answer to a request in their place is not masked."""
    server = _speaking(said)
    try:
        with _switched(proxy, server) as end, pytest.raises(ConnectionResetError):
            receive_all(end)
    finally:
        server.close()
    with pytest.raises(Malformed):
        MaskedFrames(Masker([VALUE])).feed(said)


def test_empty_parts_of_a_message_do_not_pile_up() -> None:
    frames = MaskedFrames(Masker([VALUE]))
    frames.feed(b"\x01\x01s")
    with pytest.raises(Malformed, match="too many empty parts"):
        frames.feed(b"\x00\x00" * 2000)


# Placeholders, again and again


@pytest.mark.parametrize("where", ["path", "query", "header", "headers", "body", "chunks"])
def test_a_request_does_not_grow_by_more_than_uses_of_a_secret_need(proxy: ProxyDriver, where: str) -> None:
    with http_serving() as server:
        place = _place(proxy, server, value="x" * 16_000)
        host = server.rule(NAME)
        many = PLACEHOLDER * 1000
        post = f"POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\n"
        requests = {
            "path": _request(server, many),
            "query": _request(server, "?" + f"key={PLACEHOLDER}&" * 1000),
            "header": _request(server, "", f"X-Key: {many}\r\n"),
            "headers": _request(server, "", f"X-Key: {PLACEHOLDER}\r\n" * 1000),
            "body": f"{post}Content-Length: {len(many)}\r\n\r\n{many}".encode(),
            "chunks": f"{post}Transfer-Encoding: chunked\r\n\r\n{len(many):x}\r\n{many}\r\n0\r\n\r\n".encode(),
        }
        answer = ask(place, requests[where])
        assert answer.status == 400
        assert "placeholders stand for more than" in answer.reason
        assert len(server.heard()) < 2 << 20


def test_bodies_that_are_read_ahead_take_no_more_memory_than_a_sandbox_may_have(proxy: ProxyDriver) -> None:
    """A program can begin many, and never end them."""
    with http_serving() as server, ExitStack() as others:
        place = _place(proxy, server)
        host = server.rule(NAME)
        body = b"x" * 300_000
        request = f"POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        ask(place, request)
        assert server.requests[-1].header("Content-Length") == str(len(body))
        for _ in range(100):
            end = others.enter_context(connect(place.proxy_port))
            end.sendall(b"\x05\x01\x00")
            assert receive(end, 2) == b"\x05\x00"
        ask(place, request)
        assert server.requests[-1].header("Transfer-Encoding") == "chunked"
        assert server.requests[-1].body == body


# Work: one process looks for the secrets of all sandboxes, and whoever makes a sandbox chooses their values


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        (["%" * 1000], b"%" * 2000),
        (["%" * 16_384], b"%" * SLICE_BYTES),
        (["a" * 16_384], b"a" * SLICE_BYTES),
        (["a" * 16_384], b64encode(b"a" * SLICE_BYTES)),
        ([f"eyJhbGci{number:04}" for number in range(100)], b"eyJhbGci" * (SLICE_BYTES // 8)),
        (["".join(map(chr, range(0x4E00, 0x5E00)))], "".join(map(chr, range(0x4E00, 0x5E00))).encode()),
    ],
    ids=["escaped", "escaped, long", "plain", "base64", "many that begin alike", "characters beyond ASCII"],
)
def test_an_answer_that_would_be_looked_through_for_long_is_not(values: list[str], answer: bytes) -> None:
    with pytest.raises(TooAlike):
        Masker(values).feed(answer + b" ")


@pytest.mark.parametrize("value", [VALUE, "aaaaaa", json.dumps({"type": "service_account", "key": "x" * 2000})])
def test_an_answer_that_is_full_of_a_value_is_masked(value: str) -> None:
    masker = Masker([value])
    whole = value.encode() * (200_000 // len(value))
    shown = [masker.feed(whole[at : at + SLICE_BYTES]) for at in range(0, len(whole), SLICE_BYTES)]
    assert b"".join(shown) + masker.finish() == b"*" * len(whole)


def test_what_was_found_in_heads_counts_for_the_body() -> None:
    """Or each of many headers could take long by itself."""
    secret = PeerSecret("%" * 100, (PLACEHOLDER,), read_rules([NAME]))
    secrets = HostSecrets((secret,), 80, secure=False)
    with pytest.raises(TooAlike):
        list(map(HostSecrets.masked, [secrets] * 1000, [b"%" * 200] * 1000))


def test_an_answer_that_would_hold_up_all_sandboxes_is_cut(proxy: ProxyDriver) -> None:
    def alike(connection: socket.socket) -> None:
        hear_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 16384\r\n\r\n" + b"%" * 16_384)
        connection.recv(1)

    with serving(alike, "http") as server:
        place = _place(proxy, server, "%" * 16_384)
        with connect(place.proxy_port) as end:
            end.sendall(_request(server, "x"))
            with pytest.raises(ConnectionResetError):
                receive_all(end)
        assert "too long to look for secrets" in str(proxy.last(place)["reason"])
