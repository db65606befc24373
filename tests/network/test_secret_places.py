"""Where in a request the value of a secret may stand: through the real proxy, and as bytes."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from ramet.network.http import writing
from ramet.network.secrets.peer_secrets import HostSecrets, PeerSecret
from ramet.protocol.network import secret_places
from ramet.protocol.network.secret_places import SecretPlaces
from ramet.protocol.network.specs import read_rules
from tests.network.http_talk import ask
from tests.network.proxies import Place, ProxyDriver, proxy_running
from tests.network.servers import Server

API, RAW = "api.example", "raw.example"
HERE = {API: "127.0.0.1", RAW: "127.0.0.1"}
VALUE = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
OTHER_VALUE = "another-value"
PLACEHOLDER = "ramet_secret_0123456789abcdef0123456789abcdef"
OTHER = PLACEHOLDER.replace("0", "f")
BASIC = b64encode(f"me:{PLACEHOLDER}".encode()).decode()
REAL_BASIC = b64encode(f"me:{VALUE}".encode()).decode()


@pytest.fixture(scope="module")
def proxy() -> Iterator[ProxyDriver]:
    with proxy_running() as driver:
        yield driver


def _place(proxy: ProxyDriver, server: Server, **places: object) -> Place:
    secret = {"value": VALUE, "placeholders": [PLACEHOLDER], "hosts": [server.rule(API)], **places}
    return proxy.open(server.rule(API), server.rule(RAW), addresses=HERE, secrets=[secret])


def _secrets(*places: SecretPlaces) -> HostSecrets:
    values = ((VALUE, PLACEHOLDER), (OTHER_VALUE, OTHER))
    rules = read_rules([API])
    made = [PeerSecret(value, (text,), rules, one) for (value, text), one in zip(values, places, strict=False)]
    return HostSecrets(tuple(made), 443, secure=True)


def _posting(server: Server, target: str, body: str, *headers: str, chunked: bool = False) -> bytes:
    host = server.rule(API)
    head = "\r\n".join((f"POST http://{host}{target} HTTP/1.1", f"Host: {host}", *headers, ""))
    if chunked:
        return f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n".encode()
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
@pytest.mark.parametrize(
    "kind", ["application/json", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"]
)
def test_a_value_cannot_be_stored_or_rewritten_by_a_host_that_takes_it_as_a_key(
    proxy: ProxyDriver, http_server: Server, kind: str, chunked: bool
) -> None:
    """What a body, path, query or any other header says is kept by many servers, and shown under other names."""
    body = json.dumps({"content": f"spell this with spaces: {PLACEHOLDER}"})
    headers = (
        f"Authorization: Bearer {PLACEHOLDER}",
        f"X-Api-Key: {PLACEHOLDER}",
        f"Api-Key: {PLACEHOLDER}",
        f"Content-Type: {kind}",
        f"User-Agent: {PLACEHOLDER}",
        f"Cookie: note={PLACEHOLDER}",
        f"X-Amz-Meta-Note: {PLACEHOLDER}",
        f"X_Api_Key: {PLACEHOLDER}",
        f"X-Note: Basic {BASIC}",
        f"Referer: http://{API}/?{PLACEHOLDER}",
    )
    target = f"/files/{PLACEHOLDER}?note={PLACEHOLDER}&{PLACEHOLDER}=1&{PLACEHOLDER}"
    ask(_place(proxy, http_server), _posting(http_server, target, body, *headers, chunked=chunked))
    heard = http_server.requests[-1]
    assert heard.header("Authorization") == f"Bearer {VALUE}"
    assert (heard.header("X-Api-Key"), heard.header("Api-Key")) == (VALUE, VALUE)
    assert heard.body.decode() == body
    assert heard.target == target
    for name in ("User-Agent", "Cookie", "X-Amz-Meta-Note", "X_Api_Key", "Referer"):
        assert VALUE not in str(heard.header(name)), name
        assert PLACEHOLDER in str(heard.header(name)), name
    assert heard.header("X-Note") == f"Basic {BASIC}"


def test_a_body_that_is_no_place_goes_on_as_it_came(proxy: ProxyDriver, http_server: Server) -> None:
    """With its length, also a long one."""
    body = PLACEHOLDER * 60_000
    ask(_place(proxy, http_server), _posting(http_server, "/files/none", body))
    assert http_server.requests[-1].header("Content-Length") == str(len(body))
    assert http_server.requests[-1].body.decode() == body


@pytest.mark.parametrize(
    ("places", "target", "arrives"),
    [
        ({"query": ["key"]}, "/P?key=P&note=P", "/P?key=V&note=P"),
        ({"query": ["key"]}, "/?a=b&key=P", "/?a=b&key=V"),
        ({"query": ["key"]}, "/?KEY=P&keys=P&key[a]=P&xkey=P&key%20=P", "/?KEY=P&keys=P&key[a]=P&xkey=P&key%20=P"),
        ({"query": ["key"]}, "/?key=1;note=P", "/?key=1;note=P"),
        ({"query": ["key"]}, "/?note=1;key=P", "/?note=1;key=V"),
        ({"query": ["key"]}, "/?key;P&P=key&=P&&key==P?P", "/?key;P&P=key&=P&&key==V?V"),
        ({"query": ["key"]}, "/key=P;key=P", "/key=P;key=P"),
        ({"query": ["api[key]"]}, "/?api%5Bkey%5D=P&api[key]=P", "/?api%5Bkey%5D=V&api[key]=V"),
        ({"query": ["a", "b"]}, "/?a=P&b=P&c=P", "/?a=V&b=V&c=P"),
        ({"path": True}, "/botP/send?key=P", "/botV/send?key=P"),
        ({"path": True, "query": ["key"]}, "/botP?key=P&a=P", "/botV?key=V&a=P"),
    ],
)
def test_path_and_query_carry_a_value_where_its_owner_says(
    proxy: ProxyDriver, http_server: Server, places: dict[str, object], target: str, arrives: str
) -> None:
    ask(_place(proxy, http_server, **places), _posting(http_server, target.replace("P", PLACEHOLDER), PLACEHOLDER))
    heard = http_server.requests[-1]
    assert heard.target == arrives.replace("P", PLACEHOLDER).replace("V", VALUE)
    assert heard.body.decode() == PLACEHOLDER


def test_a_named_header_carries_it_whatever_its_case_and_others_do_not() -> None:
    secrets = _secrets(SecretPlaces(headers=("X-Token", "COOKIE")))
    for name in (b"x-token", b"cookie", b"authorization", b"x-api-key", b"api-key"):
        assert secrets.in_header(name, f"a={PLACEHOLDER}".encode()) == f"a={VALUE}".encode()
    for name in (b"x-tokens", b"token", b"x_token", b"x-note"):
        assert secrets.in_header(name, PLACEHOLDER.encode()) == PLACEHOLDER.encode()


def test_basic_credentials_are_taken_apart_in_authorization_alone() -> None:
    secrets = _secrets(SecretPlaces(headers=("X-Token",)))
    assert secrets.in_header(b"authorization", f"Basic {BASIC}".encode()) == f"Basic {REAL_BASIC}".encode()
    assert secrets.in_header(b"x-token", f"Basic {BASIC}".encode()) == f"Basic {BASIC}".encode()


def test_the_places_of_one_secret_are_not_those_of_another() -> None:
    secrets = _secrets(SecretPlaces(headers=("X-Token",), query=("key",)), SecretPlaces(path=True, body=True))
    both = f"{PLACEHOLDER} {OTHER}".encode()
    assert secrets.in_header(b"authorization", both) == f"{VALUE} {OTHER_VALUE}".encode()
    assert secrets.in_header(b"x-token", both) == f"{VALUE} {OTHER}".encode()
    target = f"/{PLACEHOLDER}/{OTHER}?key={PLACEHOLDER},{OTHER}"
    assert secrets.in_target(target.encode()) == f"/{PLACEHOLDER}/{OTHER_VALUE}?key={VALUE},{OTHER}".encode()
    replacer = secrets.body_replacer(b"text/plain")
    assert replacer is not None
    assert replacer.whole(both) == f"{PLACEHOLDER} {OTHER_VALUE}".encode()


def test_a_sender_that_knows_of_no_places_means_the_usual_headers() -> None:
    assert SecretPlaces.read({"value": VALUE, "hosts": [API]}) == SecretPlaces()
    secret = PeerSecret.read({"value": VALUE, "placeholders": [PLACEHOLDER], "hosts": [API]})
    assert HostSecrets((secret,), 443, secure=True).body_replacer(b"") is None


def test_headers_that_the_proxy_writes_or_drops_cannot_be_places() -> None:
    """Somebody who names one would wait for a value that never comes."""
    ours: Any = secret_places._OF_THE_PROXY
    assert {name.decode() for name in writing._BETWEEN_HOPS - {b"trailers", b"http2-settings"}} <= ours
    assert {"range", "if-range", "accept-encoding"} <= ours
