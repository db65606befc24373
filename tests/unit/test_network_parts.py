"""The parts of the proxy that only work on bytes: the first message of TLS, DNS, and replacing in a stream."""

from __future__ import annotations

import base64
import json
import re
import ssl
import struct
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.isolation.kernel.packet_rules import NAMES_BLOCK
from ramet.network.listeners import dns_names
from ramet.network.listeners.client_hello import HELLO_BYTES_AT_MOST, Hello, HelloReader, MalformedHello, read_hello
from ramet.network.secrets.masking import Masker
from ramet.network.secrets.replacing import Replacer


def hello_of(server_name: str | None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=server_name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def in_records(message: bytes, size: int) -> bytes:
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def test_the_server_name_of_a_real_client_is_found() -> None:
    assert read_hello(hello_of("api.example")) == Hello("api.example", False)
    assert read_hello(hello_of(None)) == Hello(None, False)
    assert read_hello(hello_of("api.example") + b"what comes next") == Hello("api.example", False)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_hello_in_many_records_is_one_hello(size: int) -> None:
    data = in_records(hello_of("api.example")[5:], size)
    assert read_hello(data) == Hello("api.example", False)
    assert all(read_hello(data[:end]) is None for end in range(0, len(data) - 1, 11))


def test_a_hello_that_comes_byte_by_byte_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process reads for all sandboxes: each byte must not have everything before it read again."""
    looks = 0
    whole = HelloReader._whole

    def counted(reader: HelloReader, part: bytes) -> Hello | None:
        nonlocal looks
        looks += 1
        return whole(reader, part)

    monkeypatch.setattr(HelloReader, "_whole", counted)
    data = in_records(hello_of("api.example")[5:], 1)
    reader = HelloReader()
    assert [found for byte in data if (found := reader.feed(bytes([byte])))] == [Hello("api.example", False)]
    assert reader.data == data
    assert looks <= len(data)


def extensions(*pairs: tuple[int, bytes]) -> bytes:
    inside = b"".join(struct.pack("!HH", kind, len(data)) + data for kind, data in pairs)
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + struct.pack("!H", len(inside)) + inside
    return b"\x01" + len(body).to_bytes(3, "big") + body


def server_names(*given: bytes, kind: int = 0) -> bytes:
    inside = b"".join(struct.pack("!BH", kind, len(name)) + name for name in given)
    return struct.pack("!H", len(inside)) + inside


def test_a_second_name_that_nobody_can_read_is_told() -> None:
    message = extensions((0, server_names(b"a.example")), (0xFE0D, b"sealed"))
    assert read_hello(in_records(message, 500)) == Hello("a.example", True)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x02\x00\x00\x05hello",
        b"\x16\x03\x01\x00\x00" + b"x",
        b"\x16\x03\x01\xff\xff" + b"x",
        in_records(b"\x02" + extensions()[1:], 500),
        in_records(extensions((0, server_names(b"a.example")), (0, server_names(b"b.example"))), 500),
        in_records(extensions((0, server_names(b"a.example", b"b.example"))), 500),
        in_records(extensions((0, server_names(b"a.example", kind=1))), 500),
        in_records(extensions((0, server_names(b"a.example") + b"more")), 500),
        in_records(extensions((0, server_names("é".encode()))), 500),
        in_records(extensions((0, b"\0\xff\0\0\x05short")), 500),
        in_records(b"\x01\xff\xff\xff", 500),
        b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\x00" + bytes(HELLO_BYTES_AT_MOST),
    ],
)
def test_an_odd_hello_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedHello):
        read_hello(data)


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fall_over(data: bytes) -> None:
    for start in (b"", b"\x16\x03\x01\x01\x00", b"\x16\x03\x01\x01\x00\x01\x00\x00\x80"):
        try:
            hello = read_hello(start + data)
        except MalformedHello:
            continue
        assert hello is None or isinstance(hello, Hello)
    query = dns_names.read_query(data)
    assert query is None or query.question in data


# DNS


def query(name: str, kind: int = 1, number: int = 7, flags: int = 0x0100, class_: int = 1) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode("latin-1") for label in name.split(".") if label)
    return struct.pack("!HHHHHH", number, flags, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, class_)


def test_a_question_is_understood_and_answered() -> None:
    asked = dns_names.read_query(query("API.Example"))
    assert asked is not None
    assert (asked.name, asked.wants_address, asked.id) == ("api.example", True, 7)
    known = dns_names.DnsNames()
    address = known.address_of("api.example")
    assert address is not None
    said = dns_names.answer(asked, dns_names.OK, address)
    assert said[:12] == struct.pack("!HHHHHH", 7, 0x8180, 1, 1, 0, 0)
    assert said.endswith(address.packed)
    assert query("API.Example")[12:] in said
    refusal = dns_names.answer(asked, dns_names.NO_SUCH_NAME)
    assert refusal[:12] == struct.pack("!HHHHHH", 7, 0x8183, 1, 0, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        query("a.example")[:-1],
        query("a.example", flags=0x8100),
        query("a.example", flags=0x2800),
        query("a.example", class_=3),
        struct.pack("!HHHHHH", 1, 0, 2, 0, 0, 0) + query("a.example")[12:],
        struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\x01\0\x01",
        query(".".join(["a" * 60] * 9)),
    ],
)
def test_what_is_no_plain_question_is_not_answered(data: bytes) -> None:
    assert dns_names.read_query(data) is None


def test_a_name_with_odd_bytes_is_no_name_of_a_host() -> None:
    asked = dns_names.read_query(query("da ta\x00\xff.example"))
    assert asked is not None
    assert asked.name is None


def test_each_name_has_an_address_of_its_own_and_keeps_it() -> None:
    known, other = dns_names.DnsNames(), dns_names.DnsNames()
    addresses = [known.address_of(f"h{number}.example") for number in range(dns_names.NAMES_AT_MOST)]
    assert len(set(addresses)) == dns_names.NAMES_AT_MOST
    assert known.address_of("one.more.example") is None
    assert known.address_of("h7.example") == addresses[7]
    assert all(address in NAMES_BLOCK for address in addresses if address is not None)
    assert other.address_of("h0.example") == addresses[0], "also after a restart"
    assert addresses[5] is not None
    assert known.copy().name_of(addresses[5]) == "h5.example"
    assert other.name_of(addresses[5]) is None


# Replacing


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=5), st.text("<>", max_size=3), max_size=4),
    st.lists(st.text("abc", max_size=6), max_size=10),
)
def test_pieces_make_no_difference(texts: dict[str, str], pieces: list[str]) -> None:
    replacements = {text.encode(): by.encode() for text, by in texts.items()}
    whole = "".join(pieces).encode()
    expected = whole
    if texts:
        pattern = b"|".join(re.escape(text) for text in sorted(replacements, key=len, reverse=True))
        expected = re.sub(pattern, lambda match: replacements[match[0]], whole)
    replacer = Replacer(replacements)
    assert b"".join(replacer.feed(piece.encode()) for piece in pieces) + replacer.finish() == expected


def test_only_a_possible_beginning_is_held_back() -> None:
    replacer = Replacer({b"secret": b"******"})
    assert replacer.feed(b"data: sec") == b"data: "
    assert replacer.feed(b"ond\n") == b"second\n"
    assert replacer.feed(b"se") + replacer.feed(b"cret!") == b"******!"


@pytest.mark.parametrize("value", ["s3cr3t-value", 'p"ss/w+rd ä', "a%41b c"])
def test_a_value_is_masked_in_every_form_it_may_be_repeated_in(value: str) -> None:
    forms = [
        value,
        urllib.parse.quote(value),
        urllib.parse.quote_plus(value),
        urllib.parse.quote(value, safe="").lower(),
        json.dumps({"echo": value}),
        json.dumps({"echo": value}, ensure_ascii=False),
        value.encode().hex(),
        *(base64.b64encode(f"{before}{value}:after".encode()).decode() for before in ("", "u", "us", "user:")),
        base64.urlsafe_b64encode(f"user:{value}".encode()).decode(),
    ]
    for form in forms:
        masked = Masker([value]).whole(form.encode())
        assert len(masked) == len(form.encode())
        assert b"******" in masked, form
        assert value.encode() not in masked
