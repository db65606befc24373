"""URLs and keys that could change what a request says are refused, and a key is never shown."""

from __future__ import annotations

import pytest

from ramet import AsyncSandbox, InvalidArgument, Sandbox, Template
from ramet.transport.http.address import read_address
from ramet.transport.http.messages import request_head
from ramet.transport.http.remote import remote_engine
from ramet.transport.http.routes import Route, find_route

WRONG_URLS: list[object] = [
    "ramet.example",
    "ftp://ramet.example",
    "file:///etc/passwd",
    "http://",
    "http://:7070",
    "http://host:port",
    "http://host:0",
    "http://host:99999",
    "http://host:-1",
    "http://user:password@host",
    "http://host/?a=b",
    "http://host/#part",
    "http://host/?",
    "http://ho st",
    "http://host\r\nX-Evil: 1",
    "http://host/a\r\nX-Evil: 1",
    "http://host/a\nb",
    "http://host/\0",
    "http://host\t",
    "http://host/ä",
    "http://hö.example",
    "http://host/a b",
    'http://host/"',
    "http://[::1",
    "http://host/" + "a" * 3000,
    b"http://host",
    5,
]


@pytest.mark.parametrize("url", WRONG_URLS, ids=lambda url: repr(url)[:40])
def test_a_wrong_url_is_refused_before_anything_is_sent(url: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_address(url)
    assert refused.value.argument == "url"
    with pytest.raises(InvalidArgument):
        Sandbox(url=url)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        AsyncSandbox(url=url)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["", "a b", "a\r\nX-Evil: 1", "a\nb", "a\0", "schlüssel", "x" * 2000, b"bytes", 5])
def test_a_wrong_key_is_refused_and_not_shown(key: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_address("http://host", key)
    assert refused.value.argument == "api_key"
    if isinstance(key, str) and len(key) > 5:
        assert key not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://Host:80/", "http://host"),
        ("https://host:443", "https://host"),
        ("http://host:443", "http://host:443"),
        ("http://[::1]:7070/", "http://[::1]:7070"),
        ("http://host/r/eu-1/", "http://host/r/eu-1"),
        ("http://host/a%20b", "http://host/a%20b"),
    ],
)
def test_urls_of_the_same_place_are_the_same(url: str, same: str) -> None:
    assert read_address(url).url == same


def test_engines_are_shared_by_url_and_key() -> None:
    assert remote_engine("http://host:80", "k") is remote_engine("http://host/", "k")
    assert remote_engine("http://host", "k") is not remote_engine("http://host", "other")
    assert remote_engine("http://host", "k").place == remote_engine("http://host", "other").place
    assert remote_engine("http://host", "k").place != remote_engine("https://host", "k").place


def test_a_key_is_in_no_repr() -> None:
    address = read_address("http://host", "rmt_secret")
    engine = remote_engine("http://host", "rmt_secret")
    for shown in (repr(address), repr(engine), repr(engine._server), repr(find_route(address, {}))):
        assert "secret" not in shown


def test_a_head_has_the_lines_it_should_have() -> None:
    address = read_address("http://host:7070/below", "rmt_key")
    head = request_head(address, find_route(address, {}))
    assert head.split(b"\r\n") == [
        b"POST /below/v1/call HTTP/1.1",
        b"Host: host:7070",
        b"Authorization: Bearer rmt_key",
        b"User-Agent: ramet",
        b"Content-Type: application/vnd.ramet.frames",
        b"",
    ]


PROXY = {"http_proxy": "http://proxy.example:3128", "HTTPS_PROXY": "http://us%40er:p%3Aw@proxy.example"}


def way(url: str, **environment: str) -> Route:
    return find_route(read_address(url), {**PROXY, **environment})


def test_a_plain_request_names_the_whole_url_to_the_proxy() -> None:
    route = way("http://ramet.example/below")
    assert (route.host, route.port, route.proxy) == ("proxy.example", 3128, True)
    assert route.target == b"http://ramet.example/below/v1/call"
    assert route.tunnel is None


def test_a_secure_one_goes_through_a_tunnel() -> None:
    route = way("https://ramet.example")
    assert (route.host, route.port, route.target) == ("proxy.example", 80, b"/v1/call")
    assert route.tunnel == (
        b"CONNECT ramet.example:443 HTTP/1.1\r\nHost: ramet.example:443\r\n"
        b"Proxy-Authorization: Basic dXNAZXI6cDp3\r\n\r\n"
    )
    assert b"Basic" not in route.authorization
    assert "dXNAZXI6cDp3" not in repr(route)


@pytest.mark.parametrize(
    ("url", "exceptions"),
    [
        ("http://localhost:1", ""),
        ("http://a.localhost", ""),
        ("http://127.0.0.1", ""),
        ("http://127.1.2.3", ""),
        ("http://[::1]:80", ""),
        ("http://ramet.example", "*"),
        ("http://ramet.example", "other.example, ramet.example"),
        ("http://ramet.example", ".example"),
        ("http://ramet.example", "example"),
        ("http://ramet.example", "*.example"),
        ("http://RAMET.example", "rAmet.exaMple"),
        ("http://ramet.example:7070", "ramet.example:7070"),
        ("http://10.1.2.3", "10.0.0.0/8"),
        ("http://10.1.2.3", "10.1.2.3"),
        ("http://[fd00::5]", "fd00::/8"),
    ],
)
def test_this_machine_and_the_exceptions_are_reached_directly(url: str, exceptions: str) -> None:
    assert not way(url, no_proxy=exceptions).proxy
    assert not way(url, NO_PROXY=exceptions).proxy


@pytest.mark.parametrize(
    ("url", "exceptions"),
    [
        ("http://ramet.example", "met.example"),
        ("http://ramet.example", "ramet.example.org"),
        ("http://ramet.example", "ramet.example:7070"),
        ("http://ramet.example", ","),
        ("http://11.1.2.3", "10.0.0.0/8"),
        ("http://ramet.example", "10.0.0.0/8"),
    ],
)
def test_others_are_not(url: str, exceptions: str) -> None:
    assert way(url, no_proxy=exceptions).proxy


def test_the_proxy_of_a_cgi_program_is_not_taken_from_its_request() -> None:
    address = read_address("http://ramet.example")
    assert not find_route(address, {"REQUEST_METHOD": "POST", "HTTP_PROXY": "http://evil.example"}).proxy
    assert find_route(address, {"HTTP_PROXY": "http://proxy.example"}).proxy
    assert find_route(address, {"ALL_PROXY": "proxy.example:1"}).port == 1


@pytest.mark.parametrize("value", ["socks5://h:1", "https://h", "http://", "http://u:secret@h:port", "http://a\r\nb:1"])
def test_a_proxy_that_we_cannot_use_is_named_by_its_variable_only(value: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        find_route(read_address("http://ramet.example"), {"HTTP_PROXY": value})
    assert refused.value.argument == "HTTP_PROXY"
    assert "secret" not in str(refused.value)


def test_what_names_things_of_this_machine_is_refused_at_a_server() -> None:
    url = "http://127.0.0.1:9"
    for argument, options in [
        ("python", {"python": "/usr/bin/python3"}),
        ("mounts", {"mounts": {"/data": "/tmp"}}),
        ("template", {"template": Template("own", python="/usr/bin/python3")}),
    ]:
        for face in (Sandbox, AsyncSandbox):
            with pytest.raises(InvalidArgument, match="for embedded sandboxes only") as refused:
                face(url=url, **options)  # type: ignore[arg-type]
            assert refused.value.argument == argument


def test_a_key_without_a_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_URL", raising=False)
    with pytest.raises(InvalidArgument) as refused:
        AsyncSandbox(api_key="rmt_secret")
    assert refused.value.argument == "api_key"
    assert "secret" not in str(refused.value)


def test_an_empty_url_is_an_engine_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_URL", "http://ramet.invalid:1")
    with Sandbox(url="") as sandbox:
        assert sandbox.run_code("6 * 7").value == "42"
