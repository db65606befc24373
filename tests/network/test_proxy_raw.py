"""Programs that know no proxy: the pod's kernel leads their connections to one, which knows where they were going."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from tests.network.pod_network import RAW_PORT, PodNetwork, pod_network
from tests.network.proxies import NAME, Place, ProxyDriver, spec_of
from tests.network.servers import BANNER, Server

RESET = "ConnectionResetError"


@pytest.fixture
def pod() -> Iterator[PodNetwork]:
    made = pod_network()
    try:
        network = made.__enter__()
    except OSError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"this machine lets nobody make such a network, or has no nf_tables: {error}")
    yield network
    made.__exit__(None, None, None)


def opened(proxy: ProxyDriver, pod: PodNetwork, *rules: str, **network: object) -> Place:
    spec = spec_of(*rules, **network)  # type: ignore[arg-type]
    place = proxy.open(listeners=())
    message = {"do": "open", "id": 1000 + place.id, "network": spec.header(), "secrets": [], "like": None}
    proxy.tell({**message, "listeners": list(pod.listeners)}, list(pod.listeners.values()))
    place.id += 1000
    return place


def address_of(pod: PodNetwork, name: str) -> str | None:
    labels = "".join(chr(len(label)) + label for label in name.split("."))
    head = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0).decode("latin-1")
    answer = pod.ask("127.0.0.1", 53, f"{head}{labels}\0\0\x01\0\x01", "udp").encode("latin-1")
    return str(ip_address(answer[-4:])) if answer[7] else None


def test_a_connection_by_name_reaches_the_server(proxy: ProxyDriver, pod: PodNetwork, banner_server: Server) -> None:
    place = opened(proxy, pod, banner_server.rule(NAME), addresses={NAME: "127.0.0.1"})
    address = address_of(pod, NAME)
    assert address is not None
    assert pod.ask(address, banner_server.port).encode() == BANNER
    entry = proxy.last(place)
    assert (entry["kind"], entry["host"], entry["port"]) == ("tcp", NAME, banner_server.port)
    assert (entry["address"], entry["rule"]) == ("127.0.0.1", banner_server.rule(NAME))


def test_a_port_of_the_name_that_is_not_listed_is_reset(
    proxy: ProxyDriver, pod: PodNetwork, echo_server: Server
) -> None:
    place = opened(proxy, pod, echo_server.rule(NAME), addresses={NAME: "127.0.0.1"})
    assert pod.ask(str(address_of(pod, NAME)), 25) == RESET
    assert proxy.last(place)["reason"] == f"{NAME}:25 is in no rule of this sandbox"


@pytest.mark.parametrize("address", ["203.0.113.7", "10.0.0.1", "169.254.169.254", "198.18.7.7", "198.19.255.254"])
def test_addresses_that_no_rule_lists_are_reset(proxy: ProxyDriver, pod: PodNetwork, address: str) -> None:
    place = opened(proxy, pod, NAME)
    assert pod.ask(address, 443) == RESET
    entry = proxy.last(place)
    assert (entry["kind"], entry["host"], entry["port"], entry["allowed"]) == ("tcp", address, 443, False)


def test_http_to_a_name_is_held_to_it(proxy: ProxyDriver, pod: PodNetwork, http_server: Server) -> None:
    opened(proxy, pod, http_server.rule(NAME), addresses={NAME: "127.0.0.1"})
    address = str(address_of(pod, NAME))
    right, wrong = (
        pod.ask(address, http_server.port, f"GET /bytes/1 HTTP/1.1\r\nHost: {host}:{http_server.port}\r\n\r\n")
        for host in (NAME, "other.example")
    )
    assert right.startswith("HTTP/1.1 200 ")
    assert wrong.startswith("HTTP/1.1 400 ")


def test_the_port_that_connections_are_led_to_is_no_way_out(proxy: ProxyDriver, pod: PodNetwork) -> None:
    place = opened(proxy, pod, f"127.0.0.1:{RAW_PORT}", "127.0.0.0/8:*")
    assert pod.ask("127.0.0.1", RAW_PORT, "hello") == RESET
    assert proxy.log(place) == []


def test_nothing_but_tcp_leaves(proxy: ProxyDriver, pod: PodNetwork) -> None:
    place = opened(proxy, pod, open=True)
    assert pod.ask("203.0.113.7", 443, "hello", "udp") in ("PermissionError", "ConnectionRefusedError")
    assert pod.ask("2001:db8::1", 443) == "OSError"
    assert proxy.log(place) == []
