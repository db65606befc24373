"""Secrets through the real proxy, in the clear and in TLS: put into requests to listed hosts, masked in answers."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import trustme

from ramet.network.secrets.certificates import Authority
from tests.network.http_talk import Heard, answering, ask, hear_head, scripted
from tests.network.proxies import Place, ProxyDriver, connect, proxy_running, receive, receive_head, spec_of, tunnel
from tests.network.routes import http_serving, websocket_frame
from tests.network.servers import WAIT_SECONDS, Server, serving

NAME, OTHER = "api.example", "other.example"
ADDRESSES = {NAME: "127.0.0.1", OTHER: "127.0.0.1"}
VALUE = 'se"cr&t/of=the+weather'
STARS = "*" * len(VALUE)
PLACEHOLDER = "ramet_secret_0123456789abcdef0123456789abcdef"
# All that an owner may allow. What goes where if it does not is in test_secret_places.
EVERYWHERE: dict[str, object] = {"headers": ["X-Key"], "query": ["key", "k", "X-Key"], "path": True, "body": True}


@pytest.fixture(scope="module")
def own() -> Authority:
    return Authority.make()


@pytest.fixture(scope="module")
def proxy(own: Authority) -> Iterator[ProxyDriver]:
    with proxy_running() as driver:
        driver.tell({"do": "authority", "authority": own.header()})
        yield driver
    assert VALUE.encode() not in driver.errors
    assert VALUE not in json.dumps(driver.said)


def _secret(*hosts: str, value: str = VALUE, placeholder: str = PLACEHOLDER) -> dict[str, object]:
    return {"value": value, "placeholders": [placeholder], "hosts": list(hosts), **EVERYWHERE}


def _place(proxy: ProxyDriver, server: Server, ca_pem: str | None = None) -> Place:
    rules = [server.rule(NAME), server.rule(OTHER)]
    return proxy.open(*rules, addresses=ADDRESSES, secrets=[_secret(server.rule(NAME))], ca_pem=ca_pem)


@dataclass
class Reach:
    """A server, and a client that goes to it through the proxy."""

    server: Server
    client: httpx.Client
    place: Place

    def url(self, path: str, name: str = NAME) -> str:
        return self.server.url(path, name)


@pytest.fixture(params=["http", "https"])
def reach(request: pytest.FixtureRequest, proxy: ProxyDriver, own: Authority, authority_pem: str) -> Iterator[Reach]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    place = _place(proxy, server, ca_pem=authority_pem)
    trusted = ssl.create_default_context(cadata=own.pem + authority_pem)
    url = f"http://127.0.0.1:{place.proxy_port}"
    with httpx.Client(proxy=url, verify=trusted, trust_env=False, timeout=WAIT_SECONDS) as client:
        yield Reach(server, client, place)


def test_a_header_carries_the_value_and_its_echo_carries_stars(reach: Reach) -> None:
    answer = reach.client.get(reach.url("/echo"), headers={"Authorization": f"Bearer {PLACEHOLDER}"})
    assert reach.server.requests[-1].header("Authorization") == f"Bearer {VALUE}"
    shown = answer.json()
    assert ["Authorization", "Bearer " + "*" * len(json.dumps(VALUE)[1:-1])] in shown["headers"]


def test_basic_credentials_carry_the_value(reach: Reach) -> None:
    answer = reach.client.get(reach.url("/echo"), auth=("me", PLACEHOLDER))
    expected = b64encode(f"me:{VALUE}".encode()).decode()
    assert reach.server.requests[-1].header("Authorization") == f"Basic {expected}"
    assert expected not in answer.text


def test_path_and_query_carry_the_value(reach: Reach) -> None:
    reach.client.get(reach.url(f"/files/{PLACEHOLDER}?key={PLACEHOLDER}&x=y"))
    quoted = "se%22cr%26t%2Fof%3Dthe%2Bweather"
    assert reach.server.requests[-1].target == f"/files/{quoted}?key={quoted}&x=y"


@pytest.mark.parametrize(
    ("kind", "sent", "arrives"),
    [
        ("application/json", f'{{"k": "{PLACEHOLDER}"}}', json.dumps({"k": VALUE})),
        ("application/x-www-form-urlencoded", f"k={PLACEHOLDER}", "k=se%22cr%26t%2Fof%3Dthe%2Bweather"),
        ("text/plain", f"<{PLACEHOLDER}>", f"<{VALUE}>"),
        ("text/plain", "nothing of the kind", "nothing of the kind"),
    ],
)
def test_a_body_carries_the_value_in_its_spelling_with_its_length_told(
    reach: Reach, kind: str, sent: str, arrives: str
) -> None:
    answer = reach.client.post(reach.url("/type?as=text/plain"), content=sent, headers={"Content-Type": kind})
    arrived = reach.server.requests[-1]
    assert arrived.body.decode() == arrives
    assert arrived.header("Content-Length") == str(len(arrives))
    assert len(answer.text) == len(arrives)
    assert VALUE not in answer.text
    assert "se%22cr" not in answer.text


def test_a_body_in_chunks_or_a_very_long_one_goes_in_chunks(reach: Reach) -> None:
    """The placeholder is where pieces are cut, too."""
    filling = b"x" * 1_300_000

    def pieces() -> Iterator[bytes]:
        yield filling
        yield PLACEHOLDER[:20].encode()
        yield PLACEHOLDER[20:].encode() + b"end"

    for content in (pieces(), filling + PLACEHOLDER.encode() + b"end"):
        reach.client.post(reach.url("/files/none"), content=content, headers={"Content-Type": "text/plain"})
        arrived = reach.server.requests[-1]
        assert arrived.body == filling + VALUE.encode() + b"end"
        assert arrived.header("Transfer-Encoding") == "chunked"


def test_a_client_that_waits_for_a_word_before_its_body_is_given_it(proxy: ProxyDriver, http_server: Server) -> None:
    with connect(_place(proxy, http_server).proxy_port) as end:
        host = http_server.rule(NAME)
        head = f"PUT http://{host}/files/none HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\n"
        end.sendall(f"{head}Content-Length: {len(PLACEHOLDER)}\r\n\r\n".encode())
        assert receive_head(end) == b"HTTP/1.1 100 Continue\r\n\r\n"
        end.sendall(PLACEHOLDER.encode())
        assert receive_head(end).startswith(b"HTTP/1.1 404")
    assert http_server.requests[-1].body == VALUE.encode()


def test_answers_must_come_whole_and_not_compressed(reach: Reach) -> None:
    reach.client.get(reach.url("/echo"), headers={"Range": "bytes=0-3", "If-Range": '"x"', "Accept-Encoding": "br"})
    arrived = reach.server.requests[-1]
    assert [arrived.header(name) for name in ("Range", "If-Range", "Accept-Encoding")] == [None, None, "identity"]


def test_an_answer_that_is_compressed_all_the_same_is_unpacked(reach: Reach) -> None:
    answer = reach.client.get(reach.url("/gzip"))
    assert answer.text == "squeezed\n"
    assert "content-encoding" not in answer.headers
    assert "content-length" not in answer.headers


def test_headers_of_an_answer_are_masked(reach: Reach) -> None:
    answer = reach.client.get(reach.url(f"/headers?X-Key={PLACEHOLDER}&X-Other=a"))
    assert (answer.headers["X-Key"], answer.headers["X-Other"]) == (STARS, "a")


def test_another_host_is_sent_the_placeholder_and_nothing_is_changed(reach: Reach) -> None:
    headers = {"X-Key": PLACEHOLDER, "Range": "bytes=0-3", "Accept-Encoding": "gzip"}
    answer = reach.client.get(reach.url(f"/echo?key={PLACEHOLDER}", OTHER), headers=headers)
    arrived = reach.server.requests[-1]
    assert arrived.header("X-Key") == PLACEHOLDER
    assert arrived.target == f"/echo?key={PLACEHOLDER}"
    assert arrived.header("Range") == "bytes=0-3"
    assert PLACEHOLDER in answer.text


def test_the_placeholder_of_one_sandbox_is_nothing_in_another(proxy: ProxyDriver, http_server: Server) -> None:
    host = http_server.rule(NAME)
    theirs = PLACEHOLDER.replace("0", "9")
    secrets = [_secret(host, value="another value", placeholder=theirs)]
    place = proxy.open(host, addresses=ADDRESSES, secrets=secrets)
    ask(place, f"GET http://{host}/echo HTTP/1.1\r\nHost: {host}\r\nX-Key: {PLACEHOLDER} {theirs}\r\n\r\n".encode())
    assert http_server.requests[-1].header("X-Key") == f"{PLACEHOLDER} another value"


def test_a_secret_taken_away_is_not_put_into_the_next_request(proxy: ProxyDriver, http_server: Server) -> None:
    host = http_server.rule(NAME)
    place = _place(proxy, http_server)
    request = f"GET http://{host}/bytes/1 HTTP/1.1\r\nHost: {host}\r\nX-Key: {PLACEHOLDER}\r\n\r\n".encode()
    with connect(place.proxy_port) as end:
        for secrets, seen in (([_secret(host)], VALUE), ([], PLACEHOLDER)):
            proxy.change(place, spec_of(http_server.rule(NAME), addresses=ADDRESSES), secrets)
            proxy.flush()
            end.sendall(request)
            receive_head(end)
            receive(end, 1)
            assert http_server.requests[-1].header("X-Key") == seen


def test_an_answer_is_masked_wherever_it_is_cut(proxy: ProxyDriver) -> None:
    def talk(connection: socket.socket) -> None:
        hear_head(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b'HTTP/1.1 200 se"cr&t/of=the+weather\r\nTransfer-Encoding: chunked\r\n\r\n')
        for byte in f"<{VALUE}>".encode():
            connection.sendall(b"1\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")

    with serving(talk, "http") as server:
        place = _place(proxy, server)
        connection = http.client.HTTPConnection("127.0.0.1", place.proxy_port, timeout=WAIT_SECONDS)
        connection.request("GET", server.url("/", NAME))
        answer = connection.getresponse()
        assert (answer.reason, answer.read().decode()) == (STARS, f"<{STARS}>")
        connection.close()


def test_a_stream_of_events_is_not_held_back_by_masking(proxy: ProxyDriver) -> None:
    def talk(connection: socket.socket) -> None:
        hear_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        connection.sendall(b"data: 1\n\n")
        connection.recv(1)  # until the client has read that, and left

    with serving(talk, "http") as server, connect(_place(proxy, server).proxy_port) as end:
        host = server.rule(NAME)
        end.sendall(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert receive_head(end).startswith(b"HTTP/1.1 200 OK")
        assert receive(end, 14) == b"9\r\ndata: 1\n\n\r\n"


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, gzip", b"compress"])
def test_a_compression_that_cannot_be_looked_into_is_refused_with_502(proxy: ProxyDriver, coding: bytes) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Encoding: " + coding + b"\r\n\r\nabc"
    with answering(raw) as (server, _):
        host = server.rule(NAME)
        answer = ask(_place(proxy, server), f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert answer.status == 502
    assert "did not ask for" in answer.reason


def test_a_compressed_echo_is_masked(proxy: ProxyDriver) -> None:
    body = gzip.compress(f"<{VALUE}>".encode())
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Encoding: gzip\r\n\r\n" % len(body) + body
    with answering(raw) as (server, _):
        host = server.rule(NAME)
        place = _place(proxy, server)
        answer = ask(place, f"GET http://{host}/ HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
    assert answer.text == f"<{STARS}>"


def test_a_websocket_is_masked_and_not_compressed(proxy: ProxyDriver) -> None:
    heads: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        heads.append(hear_head(connection))
        connection.sendall(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        connection.sendall(websocket_frame(1, VALUE.encode()))

    with serving(talk, "http") as server, connect(_place(proxy, server).proxy_port) as end:
        host = server.rule(NAME)
        end.sendall(
            f"GET http://{host}/?k={PLACEHOLDER} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n".encode()
        )
        assert receive_head(end).startswith(b"HTTP/1.1 101 ")
        frame = websocket_frame(1, STARS.encode())
        assert receive(end, len(frame)) == frame
    assert b"Sec-WebSocket-Extensions" not in heads[0]
    assert b"k=se%22cr" in heads[0]


def test_a_server_whose_certificate_is_not_trusted_is_told_with_502(
    proxy: ProxyDriver, own: Authority, https_server: Server
) -> None:
    place = _place(proxy, https_server)  # no ca_pem
    answer = _ask_in_tls(place, own, https_server, NAME)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"its certificate is not trusted" in answer
    assert f"{NAME}:{https_server.port}".encode() in answer
    assert "certificate is not trusted" in str(proxy.last(place)["reason"])


def test_a_server_with_the_certificate_of_another_host_is_told_with_502(
    proxy: ProxyDriver, own: Authority, authority: trustme.CA, authority_pem: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(OTHER).configure_cert(context)
    heard = Heard()
    with serving(scripted([b""], heard), "https", context) as server:
        answer = _ask_in_tls(_place(proxy, server, ca_pem=authority_pem), own, server, NAME)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"Hostname mismatch" in answer
    assert heard.heads == []


def test_a_server_that_speaks_no_tls_is_told_with_502(proxy: ProxyDriver, own: Authority) -> None:
    """One answers in the clear, the other hangs up."""
    for reply in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):

        def talk(connection: socket.socket, reply: bytes = reply) -> None:
            connection.recv(65536)
            connection.sendall(reply)

        with serving(talk) as server:
            answer = _ask_in_tls(_place(proxy, server), own, server, NAME)
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"TLS" in answer


def test_a_host_without_secrets_shows_its_own_certificate(
    proxy: ProxyDriver, own: Authority, https_server: Server, authority_pem: str
) -> None:
    place = _place(proxy, https_server, ca_pem=authority_pem)
    with tunnel(place, OTHER, https_server.port) as end:
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context(cadata=own.pem).wrap_socket(end, server_hostname=OTHER)
    with tunnel(place, NAME, https_server.port) as end:
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context(cadata=authority_pem).wrap_socket(end, server_hostname=NAME)


def test_requests_in_one_tls_connection_share_one_upstream(proxy: ProxyDriver, own: Authority, authority: trustme.CA,
                                                           authority_pem: str) -> None:  # fmt: skip
    with http_serving(authority) as server:
        place = _place(proxy, server, ca_pem=authority_pem)
        trusted = ssl.create_default_context(cadata=own.pem)
        url = f"http://127.0.0.1:{place.proxy_port}"
        with httpx.Client(proxy=url, verify=trusted, trust_env=False, timeout=WAIT_SECONDS) as client:
            for size in (1, 100_000, 2_000_000):
                assert len(client.get(server.url(f"/bytes/{size}", NAME)).content) == size
        assert server.connections == 1
        (entry,) = proxy.log(place)
        assert (entry["kind"], entry["host"], entry["allowed"]) == ("connect", NAME, True)


def test_a_host_in_the_tls_request_must_be_the_one_of_the_tunnel(
    proxy: ProxyDriver, own: Authority, https_server: Server, authority_pem: str
) -> None:
    place = _place(proxy, https_server, ca_pem=authority_pem)
    answer = _ask_in_tls(place, own, https_server, OTHER)
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_plain_http_on_the_port_of_tls_is_not_told_the_value(proxy: ProxyDriver, authority: trustme.CA) -> None:
    """Only ports that a secret lists are; and 443 is listed for what TLS protects."""
    with http_serving() as server:
        place = proxy.open(server.rule(NAME), addresses=ADDRESSES, secrets=[_secret(f"{NAME}:443")])
        host = server.rule(NAME)
        ask(place, f"GET http://{host}/echo HTTP/1.1\r\nHost: {host}\r\nX-Key: {PLACEHOLDER}\r\n\r\n".encode())
        assert server.requests[-1].header("X-Key") == PLACEHOLDER


def _ask_in_tls(place: Place, own: Authority, server: Server, host: str) -> bytes:
    with tunnel(place, NAME, server.port) as end:
        with ssl.create_default_context(cadata=own.pem).wrap_socket(end, server_hostname=NAME) as inside:
            inside.sendall(f"GET /echo HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while piece := inside.recv(65536):
                answer += piece
            return answer
