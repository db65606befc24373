"""Ports of a sandbox on the host's loopback."""

from __future__ import annotations

import socket

import pytest

from tests.network.proxies import ProxyDriver, connect, receive, receive_all
from tests.network.servers import BANNER, Server


class Exposed:
    """One exposed port, with a listener of the engine's. Sockets of the host stand in for those of a pod."""

    def __init__(self, proxy: ProxyDriver, number: int, port: int, sockets: int) -> None:
        self._proxy = proxy
        self._number = number
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        ends = [listener, *(socket.socket() for _ in range(sockets))]
        proxy.tell({"do": "expose", "exposure": number, "port": port}, [end.fileno() for end in ends])
        for end in ends:
            end.close()
        proxy.wait(lambda: bool(self._said("exposed")))

    def _said(self, what: str) -> list[dict[str, object]]:
        said = self._proxy.said
        return [message for message in said if message.get("say") == what and message.get("exposure") == self._number]

    def wait_until_more_are_wanted(self, times: int) -> None:
        self._proxy.wait(lambda: len(self._said("more")) >= times)

    def give(self, count: int) -> None:
        ends = [socket.socket() for _ in range(count)]
        self._proxy.tell({"do": "sockets", "exposure": self._number}, [end.fileno() for end in ends])
        for end in ends:
            end.close()

    def close(self) -> None:
        self._proxy.tell({"do": "unexpose", "exposure": self._number})


def test_who_connects_is_connected_to_the_server_inside(proxy: ProxyDriver, banner_server: Server) -> None:
    exposed = Exposed(proxy, 1, banner_server.port, 8)
    for _ in range(4):
        with connect(exposed.port) as end:
            assert receive(end, len(BANNER)) == BANNER
            end.sendall(b"GET / HTTP/1.1\r\n")
            end.shutdown(socket.SHUT_WR)
            assert receive_all(end) == b"GET / HTTP/1.1\r\n"
    exposed.close()


def test_sockets_are_asked_for_before_they_run_out_and_waited_for(proxy: ProxyDriver, echo_server: Server) -> None:
    exposed = Exposed(proxy, 2, echo_server.port, 1)
    exposed.wait_until_more_are_wanted(1)
    ends = [connect(exposed.port) for _ in range(5)]
    for end in ends:
        end.sendall(b"hello")
    exposed.give(4)
    exposed.wait_until_more_are_wanted(2)
    exposed.give(4)
    for end in ends:
        assert receive(end, 5) == b"hello"
        end.close()
    exposed.close()


def test_a_port_that_nobody_listens_on_inside_resets(proxy: ProxyDriver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    exposed = Exposed(proxy, 3, free, 4)
    with pytest.raises(ConnectionResetError), connect(exposed.port) as end:
        receive_all(end)
    exposed.close()


def test_a_port_that_is_taken_back_is_closed_with_its_connections(proxy: ProxyDriver, echo_server: Server) -> None:
    exposed = Exposed(proxy, 4, echo_server.port, 4)
    with connect(exposed.port) as end:
        end.sendall(b"hello")
        receive(end, 5)
        exposed.close()
        with pytest.raises(ConnectionResetError):
            receive_all(end)
    with pytest.raises(ConnectionRefusedError):
        connect(exposed.port)
