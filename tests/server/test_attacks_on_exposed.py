"""Clients that try to get further through an exposed port than to the server behind it, and servers that try to harm
the worker that passes their answers on."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest

from ramet.doors.http.exposed.answers import SandboxAnswer
from ramet.doors.http.requests.errors import RequestRefused
from tests.server.guest_servers import PORT, TALKATIVE
from tests.server.running import Server, running_server
from tests.server.talking import WAIT_SECONDS, Client, raw_connection, read_all


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("attacked"), "--require-key") as started:
        yield started
        assert "Traceback" not in started.log.read_text()


@pytest.fixture(scope="module")
def owner_key(server: Server) -> str:
    return server.create_key("owner")


@pytest.fixture
def owner(server: Server, owner_key: str) -> Iterator[Client]:
    client = Client(server.port, owner_key)
    yield client
    client.close()


@pytest.fixture(scope="module")
def exposed(server: Server, owner_key: str) -> tuple[str, str]:
    """A sandbox with a server, and the token that leads to it."""
    client = Client(server.port, owner_key)
    made = client.create()
    assert client.stdout(made, TALKATIVE) == "listening"
    told = client.ask("POST", f"/v1/sandboxes/{made}/ports", {"port": PORT}).json
    client.close()
    return made, str(told["token"])


@pytest.fixture
def sandbox_id(exposed: tuple[str, str]) -> str:
    return exposed[0]


@pytest.fixture
def token(exposed: tuple[str, str]) -> str:
    return exposed[1]


def said(server: Server, *lines: str, body: bytes = b"") -> bytes:
    """What a stranger gets who writes exactly this, and then waits for the server to hang up."""
    with raw_connection(server.port) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body)
        return read_all(connection)


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found is not None, answer
    return int(found[1])


def test_a_token_is_not_guessed(server: Server, token: str, sandbox_id: str) -> None:
    stranger = Client(server.port)
    guesses = [
        "", "x", token[:-1], token + "A", token.swapcase(), token[::-1], f" {token}", f"{token} ", f"{token}%00",
        f"%{ord(token[0]):02x}{token[1:]}", "%2e%2e", "..", "*", "%", sandbox_id, "0" * 32, "A" * 100_0,
        *(secrets.token_urlsafe(24) for _ in range(50)),
    ]  # fmt: skip
    for guess in guesses:
        answer = stranger.ask("GET", f"/v1/exposed/{guess.replace(' ', '%20')}/")
        assert (answer.status, answer.json["code"]) == (404, "not_found"), guess
    stranger.close()
    assert len(token) == 32  # 192 bits


@pytest.mark.parametrize(
    "target",
    [
        "/v1/exposed/{token}/../../whoami",
        "/v1/exposed/{token}/..%2f..%2fsandboxes",
        "/v1/exposed/{token}//v1/sandboxes",
        "/v1/exposed/{token}/http://127.0.0.1/v1/sandboxes",
        "/v1/exposed/{token}/@127.0.0.1/",
        "http://elsewhere.example/v1/exposed/{token}/x",
        "/v1/exposed/{token}/%0d%0aX-Injected:%201",
    ],
)
def test_a_path_leads_to_the_sandbox_and_nowhere_else(server: Server, token: str, target: str) -> None:
    answer = said(server, f"GET {target.format(token=token)} HTTP/1.1", "Host: a")
    assert status(answer) == 200
    assert b'"method": "GET"' in answer  # said by the server in the sandbox
    assert b'"x-injected"' not in answer.lower()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/exposed%2f{token}/",
        "/v1/exposed/%2f{token}/",
        "/v1//exposed/{token}/",
        "//v1/exposed/{token}/",
        "/v1/x/../exposed/{token}/",
        "/v1/exposed",
        "/v1/exposed/",
        "/V1/exposed/{token}/",
        "/r//r/a/v1/exposed/{token}/",
    ],
)
def test_another_path_is_not_an_exposed_one(server: Server, token: str, target: str) -> None:
    answer = said(server, f"GET {target.format(token=token)} HTTP/1.1", "Host: a")
    assert status(answer) in (401, 404)
    assert b'"method"' not in answer


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: +5",),
        ("Content-Length: 5,5",),
        ("Content-Length: 0x5",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: chunked, chunked",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding : chunked",),
        ("X-A: b\rX-B: c",),
        ("X-A: b\nTransfer-Encoding: chunked",),
        ("X-A: b", " folded: x"),
        ("X-A: \x00",),
        ("X\x01A: b",),
    ],
)
def test_a_request_that_could_mean_two_things_is_one_or_none(
    server: Server, owner: Client, sandbox_id: str, token: str, lines: tuple[str, ...]
) -> None:
    """What follows the head must not become a second request in the sandbox."""
    owner.stdout(sandbox_id, "TARGETS.clear()")
    smuggled = f"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: localhost:{PORT}\r\n\r\n".encode()
    answer = said(server, f"POST /v1/exposed/{token}/x HTTP/1.1", "Host: a", *lines, body=smuggled)
    assert status(answer) in (200, 400)
    assert owner.stdout(sandbox_id, "print(TARGETS)") in ("[]", "['/x']")


def test_a_chunked_request_gets_there_in_one_framing(server: Server, token: str) -> None:
    body = b"5;name=value\r\nhello\r\n0\r\nX-Trailer: 1\r\nAuthorization: x\r\n\r\n"
    answer = said(server, f"POST /v1/exposed/{token}/x HTTP/1.1", "Host: a", "Transfer-Encoding: chunked", body=body)
    assert status(answer) == 200
    assert b'"body": "hello"' in answer
    assert b"trailer" not in answer.lower()


def test_a_head_that_is_too_large_goes_nowhere(server: Server, token: str) -> None:
    path = f"/v1/exposed/{token}"
    assert status(said(server, f"GET {path}/{'a' * 70_000} HTTP/1.1", "Host: a")) == 431
    assert status(said(server, f"GET {path}/ HTTP/1.1", "Host: a", f"X-A: {'a' * 70_000}")) == 431
    assert status(said(server, f"GET {path}/ HTTP/1.1", "Host: a", *(f"X-{n}: a" for n in range(150)))) == 431


@pytest.mark.parametrize("method", ["CONNECT", "get", "G,T", "GET\t"])
def test_odd_methods_are_not_passed_on(server: Server, token: str, method: str) -> None:
    assert status(said(server, f"{method} /v1/exposed/{token}/ HTTP/1.1", "Host: a")) in (400, 404)


def test_a_reader_that_is_slow_holds_up_the_sandbox_and_not_the_worker(
    server: Server, owner: Client, sandbox_id: str, token: str
) -> None:
    """What nobody reads stays where it is made."""
    with raw_connection(server.port) as connection:
        connection.sendall(f"GET /v1/exposed/{token}/unread HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        taken = owner.stdout(sandbox_id, f"print(stuck.wait({WAIT_SECONDS}) and taken[0])")
    assert 0 < int(taken) < 50_000_000


def test_a_sandbox_whose_key_is_not_ours_is_not_exposed_with_another(server: Server, sandbox_id: str) -> None:
    other = Client(server.port, server.create_key("other"))
    assert other.ask("POST", f"/v1/sandboxes/{sandbox_id}/ports", {"port": 22}).status == 404
    assert other.ask("GET", f"/v1/sandboxes/{sandbox_id}/network").status == 404
    assert other.ask("POST", f"/v1/sandboxes/{sandbox_id}/network", {"allow": ["a.example"]}).status == 404
    other.close()


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"0\r\nX-Trailer: ", b"a" * 1000),
        (b"0\r\n", b"X-Trailer: a\r\n" * 100),
        (b"5;name=", b"a" * 1000),
        (b"5\r\nhello\r\n0\r\nX-Trailer: ", b"a" * 1000),
    ],
)
def test_an_answer_whose_end_does_not_end_is_given_up(begun: bytes, more: bytes) -> None:
    """The parser keeps a header until it is whole, wherever it stands."""
    answer = SandboxAnswer("GET", websocket=False)
    answer.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + begun)
    with pytest.raises(RequestRefused, match="does not stop sending"):
        [answer.feed(more) for _ in range(100)]


def test_a_long_answer_in_small_pieces_is_passed_on() -> None:
    answer = SandboxAnswer("GET", websocket=False)
    answer.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    taken = b"".join(answer.feed(b"1\r\nx\r\n" * 100) for _ in range(1000))
    assert (len(taken), answer.feed(b"0\r\nX-Trailer: a\r\n\r\n"), answer.complete) == (100_000, b"", True)


def test_a_trailer_that_does_not_end_breaks_the_answer_off(
    server: Server, owner: Client, sandbox_id: str, token: str
) -> None:
    written = (
        "b'HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n2\\r\\nok\\r\\n0\\r\\nX: ' + b'a' * 2_000_000"
    )
    owner.stdout(sandbox_id, f"WRITTEN['/trailer'] = {written}")
    answer = said(server, f"GET /v1/exposed/{token}/trailer HTTP/1.1", "Host: a")
    assert status(answer) == 200
    assert not answer.endswith(b"0\r\n\r\n"), "nobody takes it for a whole one"
