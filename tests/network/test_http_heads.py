"""Heads and chunks as bytes: what is read, what is refused and why, and that llhttp reads what we read."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.network.http.framing import CHUNKED, UNTIL_END, Chunks, answer_length, request_length
from ramet.network.http.heads import Malformed, check_beginning, read_answer, read_request
from ramet.network.http.request_targets import Asked, Repeated, read_asked

_TOKENS = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=12).map(str.encode)
_VALUES = st.binary(max_size=30).map(lambda data: bytes(byte for byte in data if byte >= 32 and byte != 127))
# Bytes that heads are made of, so that a generated one is malformed in interesting places.
_SOUP = st.lists(
    st.sampled_from(
        [b"GET", b" ", b"\r\n", b"\n", b"\r", b":", b"\t", b"HTTP/1.1", b"http://a/", b"Host", b"a", b"\x00", b"\xff",
         b"Content-Length", b"5", b"Transfer-Encoding", b"chunked", b",", b"\x0b"]
    ),
    max_size=20,
).map(b"".join)  # fmt: skip


class _Oracle:
    """What llhttp makes of a request."""

    def __init__(self, data: bytes) -> None:
        self.url = b""
        self.fields: list[tuple[bytes, bytes]] = []
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        self.method = parser.get_method()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


@given(st.lists(st.tuples(_TOKENS, _VALUES), max_size=8))
def test_whatever_a_client_may_write_is_read_as_it_was_written(pairs: list[tuple[bytes, bytes]]) -> None:
    head = b"GET http://a/ HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs) + b"\r\n"
    read = read_request(head)
    assert [(name, value) for _, name, value in read.fields.all] == [(name, value.strip(b" ")) for name, value in pairs]


@given(_SOUP)
def test_whatever_we_take_for_a_request_llhttp_reads_in_the_same_way(soup: bytes) -> None:
    """The other reader knows fewer methods; everything else that we pass on, it takes, and finds the same in it."""
    head = b"GET http://a/ HTTP/1.1\r\n" + soup.replace(b"\r\n\r\n", b"") + b"\r\n\r\n"
    head = head[: head.find(b"\r\n\r\n") + 4]
    try:
        ours = read_request(head)
        request_length(ours)
    except Malformed:
        return
    theirs = _Oracle(head)
    assert (theirs.method, theirs.url) == (ours.method, ours.target)
    assert [(name, value.rstrip(b" \t")) for name, value in theirs.fields] == [
        (name, value) for _, name, value in ours.fields.all
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"GET /\r\n", "has no version"),
        (b"GET / HTTP/0.9\r\n", "neither HTTP/1.1 nor HTTP/1.0"),
        (b"GET / HTTP/1.2\r\n", "neither HTTP/1.1 nor HTTP/1.0"),
        (b"GET / HTTP/2.0\r\n", "neither HTTP/1.1 nor HTTP/1.0"),
        (b"PRI * HTTP/2.0\r\n", "HTTP/2 in the clear"),
        (b"GET / HTTP/1.1\n", "does not end in CR LF"),
        (b"GET  / HTTP/1.1\r\n", "the request line is not"),
        (b"GET /a b HTTP/1.1\r\n", "the request line is not"),
        (b"GET /\x00 HTTP/1.1\r\n", "the request line is not"),
        (b"GET\t/ HTTP/1.1\r\n", "the method is not valid"),
        (b"get / HTTP/1.1\r\n", "the method is not valid"),
        (b"G@T / HTTP/1.1\r\n", "the method is not valid"),
        (b" GET / HTTP/1.1\r\n", "the method is not valid"),
        (b"\r\nGET / HTTP/1.1\r\n", "the method is not valid"),
        (b"TRACE / HTTP/1.1\r\n", "not passed on"),
    ],
)
def test_a_request_line_that_is_odd_is_refused_and_said_why(line: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_request(line + b"Host: a\r\n\r\n")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (b"A: 1\r\n 2\r\n", "second line"),
        (b" A: 1\r\n", "second line"),
        (b"A: 1\nB: 2\r\n", "CR LF"),
        (b"A: 1\rB: 2\r\n", "CR LF"),
        (b"A: 1\x00\r\n", "control character"),
        (b"A: 1\x7f\r\n", "control character"),
        (b"A: 1\x0b\r\n", "control character"),
        (b"A : 1\r\n", "'name: value'"),
        (b"A\r\n", "'name: value'"),
        (b": 1\r\n", "'name: value'"),
        (b"A\x80: 1\r\n", "'name: value'"),
        (b"A(: 1\r\n", "'name: value'"),
    ],
)
def test_a_field_that_is_odd_is_refused_in_requests_and_answers(lines: bytes, why: str) -> None:
    for read, first in ((read_request, b"GET / HTTP/1.1\r\n"), (read_answer, b"HTTP/1.1 200 OK\r\n")):
        with pytest.raises(Malformed, match=why):
            read(first + lines + b"\r\n")


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        (b"", None),
        (b"Content-Length: 0\r\n", 0),
        (b"Content-Length: 12\r\n", 12),
        (b"Transfer-Encoding: chunked\r\n", CHUNKED),
        (b"transfer-encoding: Chunked\r\n", CHUNKED),
    ],
)
def test_the_length_of_a_body_is_what_its_head_tells(fields: bytes, length: int | None) -> None:
    assert request_length(read_request(b"POST / HTTP/1.1\r\n" + fields + b"\r\n")) == length
    told = answer_length(read_answer(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n"), b"GET")
    assert told == (UNTIL_END if length is None else length)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "both"),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", "more than one"),
        (b"Content-Length: 5, 5\r\n", "not a number"),
        (b"Content-Length: +5\r\n", "not a number"),
        (b"Content-Length: -5\r\n", "not a number"),
        (b"Content-Length: 0x5\r\n", "not a number"),
        (b"Content-Length: 5_0\r\n", "not a number"),
        (b"Content-Length: \xb2\r\n", "not a number"),
        (b"Content-Length:\r\n", "not a number"),
        (b"Content-Length: 99999999999999999999\r\n", "not a number"),
        (b"Transfer-Encoding: gzip, chunked\r\n", "is not 'chunked'"),
        (b"Transfer-Encoding: chunked, chunked\r\n", "is not 'chunked'"),
        (b"Transfer-Encoding: identity\r\n", "is not 'chunked'"),
        (b"Transfer-Encoding: xchunked\r\n", "is not 'chunked'"),
        (b"Transfer-Encoding: \x0bchunked\r\n", "control character"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "is not 'chunked'"),
        (b"Transfer-Encoding:\r\n", "is not 'chunked'"),
    ],
)
def test_a_length_that_two_programs_could_read_in_two_ways_is_refused(fields: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        request_length(read_request(b"POST / HTTP/1.1\r\n" + fields + b"\r\n"))
    with pytest.raises(Malformed, match=why):
        answer_length(read_answer(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n"), b"GET")


def test_chunks_are_refused_in_http_1_0() -> None:
    with pytest.raises(Malformed, match=r"HTTP/1\.0"):
        request_length(read_request(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"))


def test_answers_that_have_no_body_have_none_whatever_their_head_tells() -> None:
    for status, method in ((200, b"HEAD"), (204, b"GET"), (304, b"GET"), (100, b"POST")):
        head = read_answer(b"HTTP/1.1 %d x\r\nContent-Length: 5\r\n\r\n" % status)
        assert answer_length(head, method) == 0


def test_a_beginning_that_cannot_become_a_request_is_refused_before_the_rest_has_come() -> None:
    for beginning in (b"\x16\x03\x01", b"GET /\r\n", b"GET / HTTP/1.1\nA", b"GET / HTTP/1.1\r\nA: b\nc", b"\r\n"):
        with pytest.raises(Malformed):
            check_beginning(beginning)
    for beginning in (b"G", b"GET / HTTP/1.1\r", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nA: b\r"):
        check_beginning(beginning)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.binary(max_size=10), st.data())
def test_chunks_are_taken_apart_however_they_are_cut(chunks: list[bytes], behind: bytes, data: st.DataObject) -> None:
    wire = b"".join(b"%x;x=y\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nA: b\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=8)))
    reader = Chunks()
    body = b""
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        piece = wire[start:end] + (behind if end == len(wire) else b"")
        if not reader.ended and piece:
            body += reader.feed(piece)
    assert reader.ended
    assert (body, reader.rest) == (b"".join(chunks), behind)


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"5\r\nabcdeXX", "longer than its size"),
        (b"5\r\nabcde\n0\r\n\r\n", "longer than its size"),
        (b"5\nabcde\r\n", "not a number"),
        (b"g\r\n", "not a number"),
        (b"0x5\r\nabcde\r\n", "not a number"),
        (b"-5\r\n", "not a number"),
        (b" 5\r\n", "not a number"),
        (b"5 \r\n", "not a number"),
        (b"5;a\nb\r\n", "not a number"),
        (b"5;a\rb\r\n", "not a number"),
        (b"\r\n", "not a number"),
        (b"ffffffffffffffff\r\n", "not a number"),
        (b"5;" + b"a" * 400, "not a number"),
        (b"0\r\nA : b\r\n\r\n", "'name: value'"),
        (b"0\r\n" + b"A: b\r\n" * 4000, "too much"),
    ],
)
def test_chunks_that_are_odd_are_refused(wire: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        Chunks().feed(wire)


@given(
    st.sampled_from([b"GET", b"POST"]),
    st.sampled_from([b"http://a.example/x", b"http://a.example:80/", b"http://a.example", b"http://b.example/?q"]),
    st.sampled_from(
        [b"/", b"", b"/other?x=y", b"?x", b"/a b", b"/#x", b"/\r\nHost: b.example", b" HTTP/1.1\r\n", b"/\xff"]
    ),
    st.sampled_from([b"Host: a.example\r\n", b"Host: b.example\r\n", b"Host: a.example\r\nContent-Length: 3\r\n", b""]),
)
def test_a_request_that_repeats_another_is_read_as_if_it_did_not(
    method: bytes, start: bytes, path: bytes, fields: bytes
) -> None:
    first = b"GET http://a.example/first HTTP/1.1\r\nHost: a.example\r\n\r\n"
    asked = read_asked(read_request(first), None, False)
    assert isinstance(asked, Asked)
    head = method + b" " + start + path + b" HTTP/1.1\r\n" + fields + b"\r\n"
    again = Repeated(first, asked).read(head)
    if again is None:
        return
    whole = read_asked(read_request(head), None, False)
    assert isinstance(whole, Asked)
    assert again._replace(head=whole.head) == whole
    assert again.head.fields.all == whole.head.fields.all


def test_the_next_request_of_a_client_is_a_repetition_as_a_rule() -> None:
    first = b"GET http://a.example/first HTTP/1.1\r\nHost: a.example\r\n\r\n"
    asked = read_asked(read_request(first), None, False)
    assert isinstance(asked, Asked)
    again = Repeated(first, asked).read(first.replace(b"first", b"second?a=b"))
    assert again == asked._replace(path=b"/second?a=b")


def _refusal(data: bytes, seen: int) -> str | None:
    try:
        check_beginning(data, seen)
    except Malformed as error:
        return str(error)
    return None


@given(_SOUP, st.booleans())
def test_a_beginning_that_comes_byte_by_byte_is_refused_at_the_same_byte(soup: bytes, begun: bool) -> None:
    """What was seen is not looked at again: a head of 64 KiB would be looked at 64 thousand times."""
    data = b"GET http://a/ HTTP/1.1\r\n" + soup if begun else b"G" + soup
    for end in range(1, len(data) + 1):
        whole = _refusal(data[:end], 0)
        assert _refusal(data[:end], end - 1) == whole
        if whole is not None:
            return
