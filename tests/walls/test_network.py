"""A sandbox has a loopback of its own and no way to anybody else's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from ramet import Sandbox
from tests.walls.attempts import armed, value


@pytest.fixture(params=["127.0.0.1", "::1", "0.0.0.0"])
def host_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as server:
        try:
            server.bind((request.param, 0))
        except OSError:
            pytest.skip(f"the host has no {request.param}")
        server.listen()
        server.settimeout(0)
        yield request.param, server.getsockname()[1]
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.promise("wall-no-network")
def test_the_loopback_of_the_host_cannot_be_reached(walled: Sandbox, host_server: tuple[str, int]) -> None:
    address, port = host_server
    family = "AF_INET6" if ":" in address else "AF_INET"
    target = address if address != "0.0.0.0" else "127.0.0.1"
    assert value(walled, f"refusal(socket.socket(socket.{family}).connect, ({target!r}, {port}))") == "ECONNREFUSED"


def test_a_datagram_to_the_loopback_of_the_host_arrives_nowhere(walled: Sandbox) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        walled.run_code(
            f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {server.getsockname()[1]}))"
        )
        with pytest.raises(BlockingIOError):
            server.recv(1)


def test_addresses_of_the_host_cannot_be_reached(walled: Sandbox) -> None:
    for address in ("192.0.2.1", "10.0.0.1", "169.254.169.254", "8.8.8.8"):
        assert value(walled, f"refusal(socket.socket().connect, ({address!r}, 80))") == "ENETUNREACH"


def test_the_only_interface_is_the_loopback(walled: Sandbox) -> None:
    assert value(walled, "[name for _, name in socket.if_nameindex()]") == ["lo"]


def test_the_own_loopback_works(walled: Sandbox) -> None:
    code = """
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
client.sendall(b'hello')
server.accept()[0].recv(5)
"""
    assert value(walled, code) == b"hello"


def test_the_loopback_of_another_sandbox_is_another(walled: Sandbox) -> None:
    port = value(walled, "listening = socket.create_server(('127.0.0.1', 0)); listening.getsockname()[1]")
    with Sandbox() as other:
        assert value(armed(other), f"refusal(socket.socket().connect, ('127.0.0.1', {port}))") == "ECONNREFUSED"


def test_abstract_unix_sockets_of_the_host_are_not_there(walled: Sandbox) -> None:
    name = f"\0ramet-test-abstract-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert value(walled, f"refusal(socket.socket(socket.AF_UNIX).connect, {name!r})") == "ECONNREFUSED"


def test_named_unix_sockets_of_the_host_are_not_there(
    walled: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = str(tmp_path_factory.mktemp("s") / "s")  # short: it has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        assert value(walled, f"refusal(socket.socket(socket.AF_UNIX).connect, {path!r})") == "ENOENT"


def test_abstract_unix_sockets_of_another_sandbox_are_not_there(walled: Sandbox) -> None:
    walled.run_code("abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0here'); abstract.listen()")
    assert value(walled, "refusal(socket.socket(socket.AF_UNIX).connect, '\\0here')") is None
    with Sandbox() as other:
        assert value(armed(other), "refusal(socket.socket(socket.AF_UNIX).connect, '\\0here')") == "ECONNREFUSED"


@pytest.mark.parametrize(
    ("family", "number"),
    [("packet", 17), ("vsock", 40), ("alg", 38), ("key", 15), ("bluetooth", 31), ("can", 29), ("tipc", 30),
     ("rds", 21), ("xdp", 44), ("ax25", 3), ("appletalk", 5), ("x25", 9), ("kcm", 41), ("qipcrtr", 42), ("smc", 43)],
)  # fmt: skip
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_sockets_of_rare_families_are_not_made(walled: Sandbox, family: str, number: int, kind: int) -> None:
    assert value(walled, f"call(41, {number}, {kind}, 0)") == "EAFNOSUPPORT"


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
@pytest.mark.parametrize("protocol", ["IPPROTO_ICMP", "IPPROTO_TCP", "IPPROTO_RAW"])
def test_raw_sockets_are_refused(walled: Sandbox, family: str, protocol: str) -> None:
    assert value(walled, f"refusal(socket.socket, socket.{family}, socket.SOCK_RAW, socket.{protocol})") == "EPERM"


@pytest.mark.parametrize("change", ["SIOCSIFFLAGS = 0x8914", "SIOCSIFADDR = 0x8916", "SIOCADDRT = 0x890b"])
def test_the_network_cannot_be_configured(walled: Sandbox, change: str) -> None:
    number = change.partition("= ")[2]
    assert value(walled, f"refusal(fcntl.ioctl, socket.socket(), {number}, b'lo' + bytes(118))") == "EPERM"
