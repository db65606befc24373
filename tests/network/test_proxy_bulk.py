"""Large transfers, which the kernel moves from socket to socket: no byte is lost, and an end is what it looks like."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.network.proxies import (
    NAME,
    PINNED,
    Place,
    ProxyDriver,
    connect,
    receive,
    receive_all,
    receive_head,
    spec_of,
    tunnel,
)
from tests.network.servers import Server, serving

MIB = 1024 * 1024
SIZE = 64 * MIB
# Not a multiple of anything, so that pieces that are swapped or cut show.
PATTERN = bytes(number * 7 % 251 for number in range(251 * 4001))


def pieces(size: int) -> Iterator[bytes]:
    while size > 0:
        yield PATTERN[:size]
        size -= len(PATTERN)


def send_all(end: socket.socket) -> None:
    for piece in pieces(SIZE):
        end.sendall(piece)


def send_much(end: socket.socket) -> None:
    """After a first word."""
    end.recv(1)
    send_all(end)


def digest(parts: Iterator[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def received(end: socket.socket) -> Iterator[bytes]:
    while data := end.recv(1 << 18):
        yield data


def started(proxy: ProxyDriver, server: Server) -> tuple[Place, socket.socket]:
    """A tunnel over which much is on its way."""
    place = proxy.open(server.rule(NAME), addresses=PINNED)
    end = tunnel(place, NAME, server.port)
    end.sendall(b"\0")
    receive(end, 8 * MIB)
    return place, end


def assert_whole(download: Callable[[], str]) -> None:
    assert download() == digest(pieces(SIZE))


def test_a_large_download_arrives_whole_and_is_counted(proxy: ProxyDriver) -> None:
    with serving(send_much) as server:
        place = proxy.open(server.rule(NAME), addresses=PINNED)
        with tunnel(place, NAME, server.port) as end:
            end.sendall(b"\0")
            assert_whole(lambda: digest(received(end)))
    entry = proxy.wait_for_entry(place, lambda entry: not entry["open"])
    assert (entry["received"], entry["sent"], entry["reason"]) == (SIZE, 1, None)


def test_large_transfers_go_both_ways_at_once(proxy: ProxyDriver) -> None:
    uploaded: list[str] = []

    def both(end: socket.socket) -> None:
        sender = threading.Thread(target=send_all, args=(end,))
        sender.start()
        uploaded.append(digest(received(end)))
        sender.join()

    with serving(both) as server:
        place = proxy.open(server.rule(NAME), addresses=PINNED)
        with tunnel(place, NAME, server.port) as end:

            def upload() -> None:
                send_all(end)
                end.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=upload)
            sender.start()
            assert_whole(lambda: digest(received(end)))
            sender.join()
        entry = proxy.wait_for_entry(place, lambda entry: not entry["open"])
    assert uploaded == [digest(pieces(SIZE))]
    assert (entry["received"], entry["sent"]) == (SIZE, SIZE)


def test_requests_follow_a_large_answer_on_the_same_connection(proxy: ProxyDriver, http_server: Server) -> None:
    place = proxy.open(http_server.rule(NAME), addresses=PINNED)
    at = http_server.rule(NAME)
    with connect(place.proxy_port) as end:
        for size in (20 * MIB + 1, 10, 30 * MIB):
            end.sendall(f"GET http://{at}/bytes/{size} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
            assert receive_head(end).startswith(b"HTTP/1.1 200 ")
            assert len(receive(end, size)) == size
    assert len(proxy.log(place)) == 1


def test_a_reset_in_the_middle_is_a_reset(proxy: ProxyDriver) -> None:
    def break_off(end: socket.socket) -> None:
        end.recv(1)
        for piece in pieces(16 * MIB):
            end.sendall(piece)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with serving(break_off) as server:
        _, end = started(proxy, server)
        with end, pytest.raises(ConnectionResetError):
            receive_all(end)


def test_a_program_that_goes_in_the_middle_takes_its_connection_along(proxy: ProxyDriver) -> None:
    with serving(send_much) as server:
        place, end = started(proxy, server)
        end.close()
        entry = proxy.wait_for_entry(place, lambda entry: not entry["open"])
    assert int(str(entry["received"])) >= 8 * MIB


def test_rules_that_change_in_the_middle_cut_it(proxy: ProxyDriver) -> None:
    with serving(send_much) as server:
        place, end = started(proxy, server)
        with end:
            proxy.change(place, spec_of(deny=[server.rule(NAME)], addresses=PINNED))
            with pytest.raises(ConnectionResetError):
                receive_all(end)
        assert "denied" in str(proxy.last(place)["reason"])


def test_all_bytes_together_end_a_large_transfer_in_the_middle(proxy: ProxyDriver) -> None:
    with serving(send_much) as server:
        place = proxy.open(server.rule(NAME), addresses=PINNED, total_bytes=20 * MIB)
        with tunnel(place, NAME, server.port) as end:
            end.sendall(b"\0")
            with pytest.raises(ConnectionResetError):
                receive_all(end)
        assert int(str(proxy.last(place)["received"])) < 22 * MIB


def test_a_reader_that_stops_for_a_while_gets_all_of_it(proxy: ProxyDriver) -> None:
    with serving(send_much) as server:
        place = proxy.open(server.rule(NAME), addresses=PINNED)
        with tunnel(place, NAME, server.port) as end:
            end.sendall(b"\0")
            seen = -1
            while seen != (seen := int(str(proxy.last(place).get("received", 0)))) or not seen:
                pass  # until nothing moves any more
            assert_whole(lambda: digest(received(end)))
