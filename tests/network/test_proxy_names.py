"""DNS in a sandbox: names that may be reached have an address that stands for them, others do not exist."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address, ip_network

import pytest

from tests.network.proxies import (
    NAME,
    WAIT_SECONDS,
    Place,
    ProxyDriver,
    connect,
    receive,
    refused,
    tunnel,
)
from tests.network.servers import Server

A, AAAA, TXT = 1, 28, 16
OK, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3


def question(name: str, kind: int = A, number: int = 7) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def ask(place: Place, name: str, kind: int = A) -> tuple[int, str | None]:
    """The code, and the address if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(WAIT_SECONDS)
        end.connect(("127.0.0.1", place.names_port))
        asked = question(name, kind)
        end.send(asked)
        answer = end.recv(2048)
    number, flags, questions, answers, _, _ = struct.unpack_from("!HHHHHH", answer)
    assert (number, questions, answer[12 : len(asked)]) == (7, 1, asked[12:])
    return flags & 15, str(ip_address(answer[-4:])) if answers else None


def test_an_allowed_name_has_an_address_that_leads_to_the_proxy(proxy: ProxyDriver) -> None:
    place = proxy.open(f"{NAME}:5432", addresses={NAME: "127.0.0.1"})
    code, address = ask(place, NAME)
    assert code == OK
    assert ip_address(str(address)) in ip_network("198.18.0.0/15")
    assert ask(place, NAME.upper())[1] == address
    assert ask(place, NAME, AAAA) == (OK, None)
    assert ask(place, NAME, TXT) == (OK, None)
    assert proxy.log(place) == []


def test_a_name_that_is_not_allowed_does_not_exist_and_nobody_is_asked(proxy: ProxyDriver) -> None:
    place = proxy.open(NAME, addresses={NAME: "127.0.0.1"})
    for name in ("secret-data.other.example", "a.data.example", "localhost", "1.2.3"):
        assert ask(place, name) == (NO_SUCH_NAME, None)
        assert ask(place, name, AAAA) == (NO_SUCH_NAME, None)
    log = proxy.log(place)
    assert [entry["host"] for entry in log] == ["secret-data.other.example", "a.data.example", "localhost", "1.2.3"]
    assert {(entry["kind"], entry["allowed"]) for entry in log} == {("dns", False)}


def test_an_allowed_name_that_leads_nowhere_does_not_exist(proxy: ProxyDriver) -> None:
    place = proxy.open("missing.invalid")
    code, address = ask(place, "missing.invalid")
    # A machine without a name server cannot say that there is no such name.
    assert code in (NO_SUCH_NAME, SERVER_FAILURE)
    assert address is None


def test_without_packet_rules_names_do_not_exist_and_the_log_says_why(proxy: ProxyDriver) -> None:
    place = proxy.open(NAME, addresses={NAME: "127.0.0.1"}, listeners=("proxy", "names"))
    assert ask(place, NAME) == (NO_SUCH_NAME, None)
    assert "nf_tables" in str(proxy.last(place)["reason"])


def test_a_copy_of_a_sandbox_knows_the_names_it_has_looked_up(proxy: ProxyDriver) -> None:
    place = proxy.open(NAME, addresses={NAME: "127.0.0.1"})
    _, address = ask(place, NAME)
    copy = proxy.open(NAME, addresses={NAME: "127.0.0.1"}, more={"like": place.id})
    assert ask(copy, NAME)[1] == address


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"x",
        bytes(11),
        question(NAME)[:-1],
        question(NAME)[:12] + b"\xc0\x0c\0\x01\0\x01",
        b"\xff" * 512,
        bytes(2000),
    ],
)
def test_what_is_no_question_has_no_answer(proxy: ProxyDriver, packet: bytes) -> None:
    place = proxy.open(NAME, addresses={NAME: "127.0.0.1"})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(WAIT_SECONDS)
        end.connect(("127.0.0.1", place.names_port))
        end.send(packet)
        end.send(question(NAME, number=9))
        assert end.recv(2048)[:2] == b"\0\x09"  # the answer to the second one


def test_a_flood_of_questions_leaves_the_proxy_well_and_its_log_short(proxy: ProxyDriver) -> None:
    place = proxy.open(NAME, addresses={NAME: "127.0.0.1"})
    other = proxy.open(NAME, addresses={NAME: "127.0.0.1"})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect(("127.0.0.1", place.names_port))
        for number in range(20_000):
            end.send(question(f"n{number}.other.example"))
    assert ask(other, NAME)[0] == OK
    connect(place.proxy_port).close()
    told = len(proxy.log(place))
    dropped = sum(int(str(message["count"])) for message in proxy.said if message.get("say") == "dropped")
    assert 0 < told + dropped <= 20_000


def test_names_come_to_an_end(proxy: ProxyDriver) -> None:
    names = {f"n{number}.example": "127.0.0.1" for number in range(5000)}
    place = proxy.open(open=True, addresses=names)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(WAIT_SECONDS)
        end.connect(("127.0.0.1", place.names_port))
        codes = set()
        for name in names:
            end.send(question(name))
            codes.add(end.recv(2048)[3] & 15)
    assert codes == {OK, SERVER_FAILURE}


def test_an_address_that_stands_for_a_name_can_be_asked_of_the_proxy_itself(
    proxy: ProxyDriver, echo_server: Server
) -> None:
    """As by a client of SOCKS that looks names up by itself."""
    place = proxy.open(echo_server.rule(NAME), addresses={NAME: "127.0.0.1"})
    _, address = ask(place, NAME)
    with tunnel(place, str(address), echo_server.port) as end:
        end.sendall(b"\0hello")
        assert receive(end, 6) == b"\0hello"
    entry = proxy.log(place)[0]
    assert (entry["host"], entry["rule"]) == (NAME, echo_server.rule(NAME))
    assert refused(place, "198.18.1.1", echo_server.port).startswith("HTTP/1.1 403 ")
