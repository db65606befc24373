"""Limits of a sandbox's network, and what hostile programs try: the proxy stays small, and others are served."""

from __future__ import annotations

import resource
import socket
import threading
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.network.proxies import (
    NAME,
    PINNED,
    Place,
    ProxyDriver,
    connect,
    proxy_running,
    receive,
    receive_all,
    receive_head,
    refused,
    tunnel,
)
from tests.network.servers import Server, serving

MIB = 1024 * 1024


def memory_bytes(proxy: ProxyDriver) -> int:
    """What the process holds, as the kernel counts it."""
    lines = Path(f"/proc/{proxy.process.pid}/statm").read_text().split()
    return int(lines[1]) * resource.getpagesize()


def descriptors_at_most(proxy: ProxyDriver) -> int:
    """The size of its table of descriptors: what is in it is nobody's to see."""
    lines = Path(f"/proc/{proxy.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("FDSize:"))


def assert_serves(proxy: ProxyDriver, server: Server, other: Place | None = None) -> None:
    """A sandbox that has done nothing is served."""
    place = other or proxy.open(server.rule(NAME), addresses=PINNED)
    with tunnel(place, NAME, server.port) as end:
        end.sendall(b"\0well")
        assert receive(end, 5) == b"\0well"


def socks(place: Place, port: int) -> int:
    """The code of the answer."""
    with connect(place.proxy_port) as end:
        end.sendall(b"\x05\x01\x00\x05\x01\x00\x03" + bytes((len(NAME),)) + NAME.encode() + port.to_bytes(2, "big"))
        return receive(end, 12)[3]


def test_connections_at_once_end_where_the_owner_said(proxy: ProxyDriver, echo_server: Server) -> None:
    place = proxy.open(echo_server.rule(NAME), addresses=PINNED, connections=3)
    ends = [tunnel(place, NAME, echo_server.port) for _ in range(3)]
    answer = refused(place, NAME, echo_server.port)
    assert answer.startswith("HTTP/1.1 429 ")
    assert "3 connections open" in answer
    assert socks(place, echo_server.port) == 1
    with connect(place.proxy_port) as end:
        end.sendall(f"GET http://{echo_server.rule(NAME)}/ HTTP/1.1\r\nHost: {echo_server.rule(NAME)}\r\n\r\n".encode())
        assert receive_head(end).startswith(b"HTTP/1.1 429 ")
    ends.pop().close()
    proxy.wait_for_entry(place, lambda entry: bool(entry["allowed"]) and not entry["open"])
    tunnel(place, NAME, echo_server.port).close()
    for one in ends:
        one.close()


def test_all_bytes_together_end_where_the_owner_said(proxy: ProxyDriver, echo_server: Server) -> None:
    place = proxy.open(echo_server.rule(NAME), addresses=PINNED, total_bytes=100_000)
    with tunnel(place, NAME, echo_server.port) as end:
        end.sendall(b"\0" * 40_000)
        receive(end, 40_000)
        end.sendall(b"\0" * 40_000)
        with pytest.raises(ConnectionResetError):
            receive_all(end)
    assert "100000 bytes" in str(proxy.last(place)["reason"])
    answer = refused(place, NAME, echo_server.port)
    assert answer.startswith("HTTP/1.1 403 ")
    assert "100000 bytes" in answer


def test_bytes_that_were_used_before_count(proxy: ProxyDriver, echo_server: Server) -> None:
    place = proxy.open(echo_server.rule(NAME), addresses=PINNED, total_bytes=1000, more={"used_bytes": 1000})
    assert "1000 bytes" in refused(place, NAME, echo_server.port)


def test_a_rate_slows_both_directions_of_all_connections_down_and_loses_nothing(
    proxy: ProxyDriver, echo_server: Server
) -> None:
    place = proxy.open(echo_server.rule(NAME), addresses=PINNED, bytes_per_second=400_000)
    first = memory_bytes(proxy)
    with tunnel(place, NAME, echo_server.port) as end:
        sender = threading.Thread(target=lambda: end.sendall(b"\0" * 200_000))
        sender.start()
        assert receive(end, 200_000) == b"\0" * 200_000
        sender.join()
    entry = proxy.last(place)
    assert (entry["sent"], entry["received"]) == (200_000, 200_000)
    assert memory_bytes(proxy) < first + 8 * MIB


@pytest.mark.deep("load")
def test_slow_readers_do_not_fill_the_proxy(proxy: ProxyDriver, echo_server: Server) -> None:
    def pour(end: socket.socket) -> None:
        while True:
            end.sendall(b"\0" * MIB)

    with serving(pour) as server:
        place = proxy.open(server.rule(NAME), addresses=PINNED, connections=200)
        before = memory_bytes(proxy)
        ends = [tunnel(place, NAME, server.port) for _ in range(200)]
        # Until nothing moves any more: all buffers between the server and programs that do not read are full.
        seen = -1
        while seen != (seen := sum(int(str(entry.get("received", 0))) for entry in proxy.log(place))):
            assert_serves(proxy, echo_server)
        assert memory_bytes(proxy) < before + 100 * MIB
        for end in ends:
            end.close()
        proxy.wait_for_entry(place, lambda entry: not entry["open"])


def connect_if_it_lets(place: Place) -> socket.socket | None:
    """Closed with a reset, so that no port stays taken. None: we were reset before we knew that we had connected."""
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    try:
        end.connect(("127.0.0.1", place.proxy_port))
    except ConnectionResetError:
        end.close()
        return None
    return end


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.deep("load")
def test_programs_that_connect_and_say_nothing_are_bounded(proxy: ProxyDriver, echo_server: Server) -> None:
    place = proxy.open(echo_server.rule(NAME), addresses=PINNED, connections=10)
    silent = [connect_if_it_lets(place) for _ in range(2000)]
    assert_serves(proxy, echo_server)
    assert descriptors_at_most(proxy) <= 1024
    for end in silent:
        if end is not None:
            end.close()


@pytest.mark.deep("load")
def test_a_hundred_thousand_connections_leave_the_proxy_well(proxy: ProxyDriver, echo_server: Server) -> None:
    place = proxy.open(NAME, addresses=PINNED)
    other = proxy.open(echo_server.rule(NAME), addresses=PINNED)
    assert_serves(proxy, echo_server, other)
    before = memory_bytes(proxy)
    request = b"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n"
    kept: deque[socket.socket] = deque()
    for number in range(100_000):
        end = connect_if_it_lets(place)
        if end is None:
            continue
        kept.append(end)
        if number % 200 == 0:
            assert_serves(proxy, echo_server, other)
            # Answered or reset, it has been accepted, and with it all before: the kernel's queue is empty.
            try:
                end.sendall(request)
                end.recv(1)
            except ConnectionError:
                pass
        if len(kept) > 600:
            kept.popleft().close()
    for end in kept:
        end.close()
    assert_serves(proxy, echo_server)
    assert memory_bytes(proxy) < before + 64 * MIB


def test_a_flood_of_refused_connections_is_counted_not_told_one_by_one(proxy: ProxyDriver, echo_server: Server) -> None:
    place = proxy.open(NAME, addresses=PINNED)
    request = b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n"
    with connect(place.proxy_port) as end:
        sender = threading.Thread(target=lambda: end.sendall(request * 5000))
        sender.start()
        answers = 0
        rest = b""
        while answers < 5000:
            rest += end.recv(1 << 20)
            answers += rest.count(b"HTTP/1.1 403 ")
            rest = rest[-12:].rpartition(b"HTTP/1.1 403 ")[2]
        sender.join()
    told = len(proxy.log(place))
    dropped = sum(
        int(str(message["count"]))
        for message in proxy.said
        if message.get("say") == "dropped" and message.get("id") == place.id
    )
    assert told + dropped == 5000
    assert_serves(proxy, echo_server)


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("hogs", [1, 5])
def test_no_sandbox_has_all_descriptors_of_the_proxy(echo_server: Server, hogs: int) -> None:
    """With none left nobody is accepted any more, and the loop is told of it without end."""
    with proxy_running(descriptors=400) as few, ExitStack() as open_ends:
        quiet = few.open(echo_server.rule(NAME), addresses=PINNED)
        for _ in range(hogs):
            place = few.open(echo_server.rule(NAME), addresses=PINNED, connections=10_000)
            for _ in range(500):
                with suppress(ConnectionError):
                    open_ends.enter_context(connect(place.proxy_port)).sendall(b"G")
        assert_serves(few, echo_server, quiet)


def test_descriptors_are_given_back(echo_server: Server) -> None:
    with proxy_running(descriptors=100) as few:
        place = few.open(echo_server.rule(NAME), addresses=PINNED)
        for _ in range(200):
            assert_serves(few, echo_server, place)


def test_a_sandbox_that_finds_no_room_is_told(echo_server: Server) -> None:
    with proxy_running(descriptors=60) as few, ExitStack() as open_ends:
        place = few.open(echo_server.rule(NAME), addresses=PINNED)
        answers = []
        for _ in range(40):
            with suppress(ConnectionError):
                end = open_ends.enter_context(connect(place.proxy_port))
                end.sendall(f"CONNECT {NAME}:{echo_server.port} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())
                answers.append(end.recv(1000))
        assert any(b"no room for more connections" in answer for answer in answers)
