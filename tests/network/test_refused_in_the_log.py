"""What code tries and does not get is in the log as refused, with the reason: malformed requests, too, and connections
that were let pass by name and refused for what was said first. Hints say what would really help.
"""

from __future__ import annotations

import pytest

from tests.network.http_talk import answering, ask, say
from tests.network.proxies import (
    NAME,
    PINNED,
    ProxyDriver,
    connect,
    receive_all,
    refused,
    spec_of,
    tunnel,
)
from tests.network.servers import Server


@pytest.mark.parametrize(
    ("request_", "host", "port", "reason"),
    [
        (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: a\r\n\r\n", "evil.example", 443, "its Host is not the host"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n", "evil.example", 80, "its Host is not the host"),
        (b"GET http://me:word@evil.example:81/ HTTP/1.1\r\nHost: a\r\n\r\n", "evil.example", 81, "a user's name"),
        (b"GET https://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "evil.example", 443, "use CONNECT"),
        (b"GET /path HTTP/1.1\r\nHost: evil.example\r\n\r\n", "", 0, "a path alone"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", 0, "not passed on"),
        (b"\x01\x02", "", 0, "not passed on"),
    ],
)
def test_a_malformed_request_to_the_proxy_is_logged(
    proxy: ProxyDriver, request_: bytes, host: str, port: int, reason: str
) -> None:
    place = proxy.open(f"{NAME}:80")
    assert say(place, request_).startswith(b"HTTP/1.1 400 ")
    (entry,) = proxy.log(place)
    assert (entry["allowed"], entry["host"], entry["port"], entry["open"]) == (False, host, port, False)
    assert reason in str(entry["reason"])
    assert "word" not in str(entry)


def test_socks_that_asks_for_something_else_is_logged(proxy: ProxyDriver) -> None:
    place = proxy.open(f"{NAME}:80")
    with connect(place.proxy_port) as end:
        end.sendall(b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50")
        receive_all(end)
    (entry,) = proxy.log(place)
    assert (entry["kind"], entry["allowed"]) == ("socks", False)


def test_many_malformed_requests_do_not_fill_the_log(proxy: ProxyDriver) -> None:
    place = proxy.open(f"{NAME}:80")
    for _ in range(300):
        with connect(place.proxy_port) as end:
            end.sendall(b"\x01\x02")
            end.shutdown(1)
            receive_all(end)
    entries = proxy.log(place)
    dropped = sum(int(str(told["count"])) for told in proxy.said if told["say"] == "dropped" and told["id"] == place.id)
    assert len(entries) + dropped == 300


def test_another_host_in_a_tunnel_is_logged_as_refused(proxy: ProxyDriver, http_server: Server) -> None:
    place = proxy.open(http_server.rule(NAME), addresses=PINNED)
    with tunnel(place, NAME, http_server.port) as end:
        end.sendall(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert receive_all(end).startswith(b"HTTP/1.1 400 ")
    (entry,) = proxy.log(place)
    assert (entry["allowed"], entry["open"], entry["sent"]) == (False, False, 0)
    assert "its Host is not the host" in str(entry["reason"])


def test_another_host_after_a_good_request_is_an_entry_of_its_own(proxy: ProxyDriver, http_server: Server) -> None:
    place = proxy.open(http_server.rule(NAME), addresses=PINNED)
    with tunnel(place, NAME, http_server.port) as end:
        end.sendall(f"GET / HTTP/1.1\r\nHost: {NAME}:{http_server.port}\r\n\r\n".encode())
        end.sendall(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert b"HTTP/1.1 400 " in receive_all(end)
    good, bad = proxy.log(place)
    assert (good["allowed"], good["reason"]) == (True, None)
    assert (bad["allowed"], bad["host"], bad["port"]) == (False, NAME, http_server.port)


def test_bytes_that_are_too_many_at_once_are_logged_as_refused(proxy: ProxyDriver, echo_server: Server) -> None:
    place = proxy.open(echo_server.rule(NAME), addresses=PINNED, total_bytes=10)
    with tunnel(place, NAME, echo_server.port) as end:
        end.sendall(b"\x00" * 100)
        with pytest.raises(ConnectionResetError):
            receive_all(end)
    entry = proxy.last(place)
    assert entry["allowed"] is False
    assert "used the 10 bytes" in str(entry["reason"])


def test_an_answer_that_takes_too_much_was_allowed_and_says_why_it_ended(proxy: ProxyDriver) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000) as (server, _):
        place = proxy.open(server.rule(NAME), addresses=PINNED, total_bytes=5000)
        answer = ask(place, f"GET {server.url(name=NAME)} HTTP/1.1\r\nHost: {NAME}:{server.port}\r\n\r\n".encode())
    assert answer.status == 403
    assert "hint: the owner of the sandbox can give it more: Network(total_bytes=...)" in answer.text
    entry = proxy.last(place)
    assert entry["allowed"] is True
    assert "used the 5000 bytes" in str(entry["reason"])


def test_an_answer_that_is_not_passed_on_says_so_in_the_log(proxy: ProxyDriver) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx") as (server, _):
        place = proxy.open(server.rule(NAME), addresses=PINNED)
        ask(place, f"GET {server.url(name=NAME)} HTTP/1.1\r\nHost: {NAME}:{server.port}\r\n\r\n".encode())
    entry = proxy.last(place)
    assert "its answer is not passed on: it has more than one Content-Length" in str(entry["reason"])


def test_the_hint_for_a_private_address_is_a_rule_that_helps(proxy: ProxyDriver, echo_server: Server) -> None:
    rule = f"localhost:{echo_server.port}"
    place = proxy.open(rule)
    answer = refused(place, "localhost", echo_server.port)
    helps = f"127.0.0.1:{echo_server.port}"
    assert f'sandbox.network.allow("{helps}")' in answer
    assert 'addresses={"localhost": "127.0.0.1"}' in answer
    proxy.change(place, spec_of(rule, helps))
    proxy.flush()
    tunnel(place, "localhost", echo_server.port).close()


def test_the_hint_for_a_denied_host_names_the_rule_that_denies_it(proxy: ProxyDriver, echo_server: Server) -> None:
    spec = spec_of(echo_server.rule(NAME), deny=[f"{NAME}:*"], addresses=PINNED)
    place = proxy.open(echo_server.rule(NAME), deny=[f"{NAME}:*"], addresses=PINNED)
    assert f'lift that rule: sandbox.network.allow("{NAME}:*")' in refused(place, NAME, echo_server.port)
    proxy.change(place, spec.allowing(spec.deny))
    proxy.flush()
    tunnel(place, NAME, echo_server.port).close()
