"""SOCKS 5 as programs speak it, and as they should not."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.network.proxies import NAME, Place, ProxyDriver, connect, receive, receive_all
from tests.network.servers import Server

GREETING = b"\x05\x01\x00"
GRANTED, NOT_ALLOWED, UNREACHABLE, REFUSED, UNKNOWN_COMMAND, UNKNOWN_FORM = 0, 2, 4, 5, 7, 8


@pytest.fixture
def place(proxy: ProxyDriver, echo_server: Server) -> Place:
    rules = [echo_server.rule(name) for name in (NAME, "127.0.0.1", "missing.invalid")]
    return proxy.open(*rules, addresses={NAME: "127.0.0.1"})


def name_form(name: str, port: int, command: int = 1) -> bytes:
    return bytes((5, command, 0, 3, len(name))) + name.encode("latin-1") + struct.pack("!H", port)


def address_form(address: str, port: int) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return bytes((5, 1, 0, 4 if ":" in address else 1)) + socket.inet_pton(family, address) + struct.pack("!H", port)


def ask(place: Place, request: bytes) -> tuple[socket.socket, int]:
    """The connection, and the code of the answer."""
    end = connect(place.proxy_port)
    end.sendall(GREETING)
    assert receive(end, 2) == b"\x05\x00"
    end.sendall(request)
    answer = receive(end, 10)
    assert answer[0] == 5
    assert answer[2:] == b"\0\x01\0\0\0\0\0\0"
    return end, answer[1]


@pytest.mark.parametrize("form", ["name", "address", "address as a name"])
def test_a_connection_is_made_for_each_form_of_a_host(
    proxy: ProxyDriver, place: Place, echo_server: Server, form: str
) -> None:
    if form == "name":
        request = name_form(NAME, echo_server.port)
    elif form == "address":
        request = address_form("127.0.0.1", echo_server.port)
    else:
        request = name_form("127.0.0.1", echo_server.port)
    end, code = ask(place, request)
    with end:
        assert code == GRANTED
        end.sendall(b"\0hello")
        assert receive(end, 6) == b"\0hello"
    assert (proxy.log(place)[0]["kind"], proxy.log(place)[0]["address"]) == ("socks", "127.0.0.1")


def test_all_that_a_program_says_may_come_in_one_packet(place: Place, echo_server: Server) -> None:
    with connect(place.proxy_port) as end:
        end.sendall(GREETING + name_form(NAME, echo_server.port) + b"\0early")
        assert receive(end, 12)[3] == GRANTED
        assert receive(end, 6) == b"\0early"


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("other.example", NOT_ALLOWED),
        ("10.0.0.1", NOT_ALLOWED),
        ("::1", NOT_ALLOWED),
        ("::ffff:127.0.0.2", NOT_ALLOWED),
        ("64:ff9b::7f00:1", NOT_ALLOWED),
        ("169.254.169.254", NOT_ALLOWED),
        ("missing.invalid", UNREACHABLE),
    ],
)
def test_a_host_that_cannot_be_had_has_its_code(place: Place, echo_server: Server, host: str, code: int) -> None:
    literal = ":" in host or host[0].isdigit()
    request = address_form(host, echo_server.port) if literal else name_form(host, echo_server.port)
    end, answered = ask(place, request)
    with end:
        assert answered == code
        assert receive_all(end) == b""


@pytest.mark.parametrize(
    "host",
    ["", "a b.example", "data.example\0.other.example", "data.example\r\nx", "127.1", "0x7f.1", "2130706433", "*"],
)
def test_a_name_that_is_none_is_not_looked_up(proxy: ProxyDriver, place: Place, echo_server: Server, host: str) -> None:
    end, code = ask(place, name_form(host, echo_server.port))
    end.close()
    assert code == NOT_ALLOWED
    assert proxy.last(place)["allowed"] is False


def test_an_ipv4_address_written_as_ipv6_is_that_ipv4_address(place: Place, echo_server: Server) -> None:
    end, code = ask(place, address_form("::ffff:127.0.0.1", echo_server.port))
    end.close()
    assert code == GRANTED  # it is listed: and so it is for an address that is not, above


@pytest.mark.parametrize("command", [0, 2, 3, 255])
def test_commands_other_than_connect_are_not_known(place: Place, echo_server: Server, command: int) -> None:
    end, code = ask(place, name_form(NAME, echo_server.port, command))
    with end:
        assert code == UNKNOWN_COMMAND
        assert receive_all(end) == b""


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"\x05\x01\x02", b"\x05\xff"),  # a password only
        (b"\x05\x00", b"\x05\xff"),
        (GREETING + b"\x04\x01\x00\x01" + bytes(6), b"\x05\x00\x05\x01\x00\x01" + bytes(6)),
        (GREETING + b"\x05\x01\x00\x02" + bytes(6), b"\x05\x00\x05\x08\x00\x01" + bytes(6)),
        (GREETING + b"\x05\x01\x07\x01" + bytes(6), b"\x05\x00\x05\x01\x00\x01" + bytes(6)),
    ],
    ids=["password", "no method", "other version", "unknown form", "reserved byte"],
)
def test_what_is_not_understood_is_answered_and_ended(place: Place, said: bytes, answer: bytes) -> None:
    with connect(place.proxy_port) as end:
        end.sendall(said)
        assert receive(end, len(answer)) == answer
        end.shutdown(socket.SHUT_WR)
        try:
            assert receive_all(end) == b""
        except ConnectionResetError:
            pass  # there was more than it had read


def test_a_handshake_that_ends_early_harms_nobody(place: Place, echo_server: Server) -> None:
    whole = GREETING + name_form(NAME, echo_server.port)
    for length in range(1, len(whole)):
        with connect(place.proxy_port) as end:
            end.sendall(whole[:length])
    end, code = ask(place, name_form(NAME, echo_server.port))
    end.close()
    assert code == GRANTED


def test_port_zero_is_no_port(place: Place) -> None:
    end, code = ask(place, name_form(NAME, 0))
    end.close()
    assert code == NOT_ALLOWED
