"""A server in a sandbox is reached through a URL with a token, as it is and no further than that."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.protocol import calls
from ramet.protocol.network.specs import OWN_PORTS
from tests.server.guest_servers import PORT, TALKATIVE
from tests.server.running import Server, running_server, worker_pid
from tests.server.talking import WAIT_SECONDS, Client, raw_connection, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("exposing")) as started:
        yield started
        assert "Traceback" not in started.log.read_text()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    talker = Client(server.port)
    yield talker
    talker.close()


@pytest.fixture(scope="module")
def shared(server: Server) -> Iterator[tuple[str, str]]:
    """A sandbox with a server, and the path to it; for tests that leave it as it was."""
    talker = Client(server.port)
    made = served(talker)
    talker.close()  # the server hangs up on those that say nothing for long
    yield made
    talker.remove(made[0])
    talker.close()


@pytest.fixture
def path(shared: tuple[str, str]) -> str:
    return shared[1]


def served(client: Client, **options: object) -> tuple[str, str]:
    sandbox_id = client.create(**options)
    assert client.stdout(sandbox_id, TALKATIVE) == "listening"
    return sandbox_id, expose(client, sandbox_id)["path"]


def expose(client: Client, sandbox_id: str, port: int = PORT) -> dict[str, Any]:
    answer = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/ports", {"port": port})
    assert answer.status == 201, answer
    told: dict[str, Any] = answer.json
    return told


def write_answer(client: Client, sandbox_id: str, data: bytes) -> None:
    """Have the server answer /written with exactly this."""
    assert client.stdout(sandbox_id, f"WRITTEN['/written'] = {data!r}; print('ok')") == "ok"


def begin(port: int, path: str, head: str = "") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n".encode())
    return connection


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


# There and back


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_any_method_gets_there_with_its_body(client: Client, path: str, method: str) -> None:
    answer = client.ask(method, f"{path}a/b%2Fc/../d?x=1&y=%20", None if method == "GET" else b"the body")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    told = answer.json
    assert (told["method"], told["target"]) == (method, "/a/b%2Fc/../d?x=1&y=%20")
    assert told["body"] == ("" if method == "GET" else "the body")


def test_the_url_works_with_and_without_its_last_slash(client: Client, path: str) -> None:
    assert client.ask("GET", path).json["target"] == "/"
    assert client.ask("GET", f"{path.rstrip('/')}?x").json["target"] == "/?x"
    assert client.ask("GET", f"/r/somewhere{path}y").json["target"] == "/y"
    page = client.ask("GET", f"{path.rstrip('/')}?x", headers={"Accept": "text/html,*/*"})
    assert (page.status, page.headers["location"]) == (308, f"{path}?x")


def test_the_url_names_the_server_as_the_caller_does(client: Client, shared: tuple[str, str]) -> None:
    told = expose(client, shared[0])
    assert told["url"] == f"http://127.0.0.1:{client.port}{told['path']}"
    assert told["path"] == f"/v1/exposed/{told['token']}/"
    behind = client.ask(
        "POST",
        f"/v1/sandboxes/{shared[0]}/ports",
        {"port": PORT},
        {"X-Forwarded-Proto": "https"},
    )
    assert behind.json["url"].startswith("https://")


def test_head_and_answers_without_a_body(client: Client, shared: tuple[str, str]) -> None:
    sandbox_id, path = shared
    head = client.ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    for status in ("204 No Content", "304 Not Modified"):
        write_answer(client, sandbox_id, f"HTTP/1.1 {status}\r\nETag: x\r\nContent-Length: 5\r\n\r\n".encode())
        answer = client.ask("GET", f"{path}written")
        assert (str(answer.status), answer.body, answer.headers["etag"]) == (status[:3], b"", "x")


def test_events_come_when_they_are_sent(client: Client, server: Server, shared: tuple[str, str]) -> None:
    sandbox_id, path = shared
    client.stdout(sandbox_id, "released.clear()")
    other = Client(server.port)
    try:
        response = other.send("GET", f"{path}events")
        assert response.read1() == b"data: first\n\n"
        client.stdout(sandbox_id, "released.set()")
        assert response.read() == b"data: second\n\n"
    finally:
        other.close()


@pytest.mark.parametrize("chunked", [True, False])
def test_a_request_is_passed_on_while_it_is_sent(server: Server, path: str, chunked: bool) -> None:
    length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 6"
    with raw_connection(server.port) as connection:
        connection.sendall(f"POST {path}duplex HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n".encode())
        connection.sendall(b"3\r\none\r\n" if chunked else b"one")
        assert b"\r\n\r\n" in read_until(connection, b"ONE")
        connection.sendall(b"3\r\ntwo\r\n0\r\n\r\n" if chunked else b"two")
        read_until(connection, b"TWO\r\n0\r\n\r\n")


def test_much_is_passed_on_whole(client: Client, path: str) -> None:
    size = 50_000_000
    assert len(client.ask("GET", f"{path}many?{size}").body) == size
    body = os.urandom(3_000_000)
    assert client.ask("POST", path, body).json["body"].encode("latin-1") == body


def test_a_redirect_stays_below_the_url(client: Client, shared: tuple[str, str]) -> None:
    sandbox_id, path = shared
    for location, expected in (
        ("/login?x", f"{path}login?x"),
        (f"http://localhost:{PORT}/a", f"{path}a"),
        (f"http://127.0.0.1:{PORT}", path),
        ("next", f"{path}next"),
        ("../../../v1/sandboxes", f"{path}v1/sandboxes"),
        ("%2e%2e/%2E./v1/sandboxes", f"{path}v1/sandboxes"),
        (f"http://127.0.0.1:{client.port}/v1/sandboxes", f"{path}v1/sandboxes"),
        (f"http://127.0.0.1:{client.port}{path}own", f"{path}own"),
        ("https://other.example/", "https://other.example/"),
        ("//other.example/", "//other.example/"),
    ):
        write_answer(
            client, sandbox_id, f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        answer = client.ask("GET", f"{path}written")
        assert (answer.status, answer.headers["location"]) == (302, expected)


@pytest.mark.parametrize(
    "location",
    ["javascript:alert(1)", "http://localhost:PORT/v1/sandboxes", "http://user@127.0.0.1:PORT/v1", "/\\\\host/",
     "http:/v1/sandboxes", "/a\tb", "http://0x7f000001:PORT/v1", "http://other.example:PORT/v1"],
)  # fmt: skip
def test_a_redirect_to_the_server_itself_is_dropped(client: Client, shared: tuple[str, str], location: str) -> None:
    sandbox_id, path = shared
    location = location.replace("PORT", str(client.port))
    head = "".join(f"{name}: {location}\r\n" for name in ("Location", "Content-Location"))
    head += f"Refresh: 0; url={location}\r\nLink: <{location}>; rel=preload\r\n"
    write_answer(client, sandbox_id, f"HTTP/1.1 307 Found\r\n{head}Content-Length: 0\r\n\r\n".encode())
    answer = client.ask("GET", f"{path}written")
    assert answer.status == 307
    assert not {"location", "content-location", "refresh", "link"} & set(answer.headers)


def test_an_answer_before_the_whole_request_counts(client: Client, shared: tuple[str, str]) -> None:
    """The server hangs up with the request unread: a reset comes right behind its answer."""
    sandbox_id, path = shared
    write_answer(client, sandbox_id, b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!")
    answer = client.ask("POST", f"{path}written", bytes(200_000))
    assert (answer.status, answer.body) == (413, b"no!")


# Websockets


_UPGRADE = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
_KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


def test_a_websocket_is_passed_on_both_ways(client: Client, server: Server, shared: tuple[str, str]) -> None:
    sandbox_id, path = shared
    client.stdout(sandbox_id, "departed.clear()")
    with begin(server.port, f"{path}socket", _UPGRADE + _KEY) as connection:
        data = read_until(connection, b"first words")
        head = data.partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 101 ")
        assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head
        assert b"upgrade: websocket" in head
        connection.sendall(b"abc")
        assert read_until(connection, b"cba")
        much = os.urandom(2_000_000)
        sent = 0
        came = bytearray()
        connection.setblocking(False)
        connection.settimeout(WAIT_SECONDS)
        while len(came) < len(much):
            if sent < len(much):
                sent += connection.send(much[sent : sent + 65536])
            came += connection.recv(1 << 20)
        assert sorted(came) == sorted(much)
    assert client.stdout(sandbox_id, f"print(departed.wait({WAIT_SECONDS}))") == "True"


def test_what_is_sent_right_behind_an_upgrade_is_not_lost(server: Server, path: str) -> None:
    with raw_connection(server.port) as connection:
        head = f"GET {path}socket HTTP/1.1\r\nHost: a\r\n{_UPGRADE}{_KEY}\r\n"
        connection.sendall(head.encode() + b"hurry")
        assert b"yrruh" in read_until(connection, b"yrruh")


def test_a_refused_websocket_is_answered_as_any_request(server: Server, path: str) -> None:
    with begin(server.port, f"{path}not-a-socket", _UPGRADE + _KEY) as connection:
        assert read_until(connection, b"not-a-socket").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("upgrade", ["h2c", "websocket, h2c", "tcp"])
def test_other_protocols_are_refused(server: Server, path: str, upgrade: str) -> None:
    with begin(server.port, path, f"Connection: Upgrade\r\nUpgrade: {upgrade}\r\n") as connection:
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 501 ")


# What does not get through


def test_what_is_for_the_server_is_not_for_the_sandbox(client: Client, server: Server, path: str) -> None:
    key = server.create_key("visitor")
    sent = {
        "Authorization": f"Bearer {key}",
        "Cookie": "session=1",
        "X-Forwarded-For": "203.0.113.9",
        "X-Forwarded-Prefix": "/other",
        "Forwarded": "for=203.0.113.9",
        "X-Real-IP": "203.0.113.9",
        "Proxy-Authorization": "Basic eA==",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "TE": "trailers",
        "Content_Length": "5",
        "X_Forwarded_For": "203.0.113.9",
        "X-Kept": "yes",
        "Accept-Encoding": "identity",
    }
    told = client.ask("GET", path, headers=sent).json
    assert dict(told["headers"]) == {
        "host": f"localhost:{PORT}",
        "x-forwarded-host": f"127.0.0.1:{server.port}",
        "x-forwarded-proto": "http",
        "x-forwarded-prefix": path.rstrip("/"),
        "x-kept": "yes",
        "accept-encoding": "identity",
        "connection": "close",
    }
    assert len(told["headers"]) == 7


def test_a_sandbox_does_not_speak_for_the_whole_address(client: Client, shared: tuple[str, str]) -> None:
    sandbox_id, path = shared
    for_all = (
        "Set-Cookie: a=b; Path=/", "Clear-Site-Data: *", "Strict-Transport-Security: max-age=9", "Alt-Svc: h2=x:1",
        "Service-Worker-Allowed: /", "WWW-Authenticate: Basic", "X-Accel-Redirect: /etc/passwd", "X-Sendfile: /x",
        "Connection: X-Hop", "X-Hop: 1", "Referrer-Policy: unsafe-url", "Keep-Alive: 5",
    )  # fmt: skip
    kept = "Content-Security-Policy: default-src 'self'\r\nX-Accel-Buffering: no\r\nX-Kept: yes"
    head = "\r\n".join(["HTTP/1.1 200 OK", *for_all, kept, "Content-Length: 2", "", "ok"])
    write_answer(client, sandbox_id, head.encode())
    response = client.send("GET", f"{path}written")
    names = sorted(name.lower() for name, _ in response.getheaders())
    assert names == [
        "content-length", "content-security-policy", "content-security-policy", "date", "referrer-policy",
        "x-accel-buffering", "x-content-type-options", "x-kept",
    ]  # fmt: skip
    policies = response.headers.get_all("content-security-policy") or []
    assert policies[0] == "default-src 'self'"
    assert policies[1].startswith("sandbox ")
    assert "allow-same-origin" not in policies[1]
    assert response.getheader("referrer-policy") == "no-referrer"
    assert response.read() == b"ok"


def test_a_page_with_an_origin_of_its_own_may_ask_its_own_server(client: Client, path: str) -> None:
    of_page = {"Origin": "null", "Sec-Fetch-Site": "cross-site"}
    assert client.ask("GET", path, headers=of_page).headers["access-control-allow-origin"] == "*"
    wish = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type, x-mine"}
    before = client.ask("OPTIONS", path, headers={**of_page, **wish})
    assert (before.status, before.headers["access-control-allow-headers"]) == (204, "content-type, x-mine")
    assert "access-control-allow-origin" not in client.ask("GET", path).headers
    # And nothing else of this address.
    assert client.ask("GET", "/v1/sandboxes", headers=of_page).status == 403
    assert client.ask("POST", "/v1/sandboxes", {}, headers={"Origin": "null"}).status == 403


# Bad answers


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 999 What\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nbytes",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3000,
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    ],
)
def test_an_answer_that_is_none_is_a_bad_gateway(client: Client, shared: tuple[str, str], said: bytes) -> None:
    sandbox_id, path = shared
    write_answer(client, sandbox_id, said)
    answer = client.ask("GET", f"{path}written")
    assert (answer.status, answer.json["code"]) == (502, "unreachable")


def test_announcements_before_an_answer_are_passed_over(client: Client, shared: tuple[str, str]) -> None:
    sandbox_id, path = shared
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    write_answer(client, sandbox_id, early + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokand more")
    answer = client.ask("GET", f"{path}written")
    assert (answer.status, answer.body) == (200, b"ok")
    assert "link" not in answer.headers


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(
    server: Server, client: Client, shared: tuple[str, str], said: bytes
) -> None:
    sandbox_id, path = shared
    write_answer(client, sandbox_id, said)
    other = Client(server.port)
    try:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            other.ask("GET", f"{path}written")
    finally:
        other.close()


# Who may, and how long


def test_no_key_is_needed_but_the_token(tmp_path: Path) -> None:
    with running_server(tmp_path, "--require-key") as server:
        owner, other = Client(server.port, server.create_key("one")), Client(server.port, server.create_key("two"))
        stranger = Client(server.port)
        sandbox_id, path = served(owner)
        assert stranger.ask("GET", path, headers={"Origin": "http://a.example", "Host": "a.example"}).status == 200
        assert stranger.ask("GET", "/v1/sandboxes").status == 401
        # A port of another's sandbox is as one of none at all.
        for talker, status in ((other, 404), (stranger, 401)):
            assert talker.ask("POST", f"/v1/sandboxes/{sandbox_id}/ports", {"port": PORT}).status == status
            assert talker.ask("GET", f"/v1/sandboxes/{sandbox_id}/ports").status == status
            assert talker.ask("DELETE", f"/v1/sandboxes/{sandbox_id}/ports/{PORT}").status == status
        assert stranger.ask("GET", path).status == 200
        for talker in (owner, other, stranger):
            talker.close()


def test_a_port_may_be_exposed_before_anything_listens(client: Client) -> None:
    sandbox_id = client.create()
    path = expose(client, sandbox_id)["path"]
    answer = client.ask("GET", path)
    assert (answer.status, answer.json["code"]) == (502, "unreachable")
    assert client.stdout(sandbox_id, TALKATIVE) == "listening"
    assert client.ask("GET", path).status == 200
    client.remove(sandbox_id)


def test_a_port_has_one_url_until_it_is_taken_back(client: Client, server: Server) -> None:
    sandbox_id, path = served(client)
    assert expose(client, sandbox_id)["path"] == path
    second = expose(client, sandbox_id, 9000)
    listed = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/ports").json["ports"]
    assert [(row["port"], row["path"]) for row in listed] == [(PORT, path), (9000, second["path"])]
    with begin(server.port, f"{path}forever") as connection:
        read_until(connection, b"first")
        assert client.ask("DELETE", f"/v1/sandboxes/{sandbox_id}/ports/{PORT}").status == 204
        assert_cut_off(connection)
    assert client.ask("GET", path).status == 404
    assert client.ask("DELETE", f"/v1/sandboxes/{sandbox_id}/ports/{PORT}").status == 204
    again = expose(client, sandbox_id)["path"]
    assert again != path
    assert client.ask("GET", again).status == 200
    client.remove(sandbox_id)


def assert_cut_off(connection: socket.socket) -> None:
    """Without the chunk that ends an answer."""
    rest = b""
    try:
        while piece := connection.recv(65536):
            rest += piece
    except ConnectionError:
        pass
    assert b"0\r\n\r\n" not in rest


def test_a_url_ends_with_its_sandbox(client: Client, server: Server) -> None:
    sandbox_id, path = served(client)
    with (
        begin(server.port, f"{path}forever") as streaming,
        begin(server.port, f"{path}socket", _UPGRADE + _KEY) as websocket,
    ):
        read_until(streaming, b"first")
        read_until(websocket, b"first words")
        client.remove(sandbox_id)
        assert_cut_off(streaming)
        assert_cut_off(websocket)
    answer = client.ask("GET", path)
    assert (answer.status, answer.json["details"]["cause"]) == (410, "closed")


def test_a_fork_has_none_of_its_parents_urls(client: Client) -> None:
    sandbox_id, path = served(client)
    (child,) = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 1}).json["children"]
    assert client.ask("GET", f"/v1/sandboxes/{child}/ports").json == {"ports": []}
    own = expose(client, child)["path"]
    assert own != path
    client.remove(child)
    assert client.ask("GET", own).status == 410
    assert client.ask("GET", path).status == 200
    client.remove(sandbox_id)


@pytest.mark.deep("restarts")
def test_a_url_survives_the_worker(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client = Client(server.port)
        _, path = served(client)
        client.close()
        before = worker_pid(server)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: worker_pid(server) not in (0, before), "another worker runs")
        again = Client(server.port)
        assert again.ask("GET", path).status == 200
        again.close()
        token = path.split("/")[3].encode()
        for file in server.state.iterdir():
            assert not file.is_file() or token not in file.read_bytes(), file
        assert token not in server.log.read_bytes()


def test_a_client_that_leaves_is_told_to_the_server_in_the_sandbox(
    client: Client, server: Server, shared: tuple[str, str]
) -> None:
    sandbox_id, path = shared
    client.stdout(sandbox_id, "departed.clear()")
    with begin(server.port, f"{path}forever") as connection:
        read_until(connection, b"first")
    assert client.stdout(sandbox_id, f"print(departed.wait({WAIT_SECONDS}))") == "True"


def test_only_so_many_requests_of_a_url_are_under_way(client: Client, server: Server, shared: tuple[str, str]) -> None:
    _, path = shared
    streams = []
    try:
        for _ in range(100):
            streams.append(begin(server.port, f"{path}forever"))
            read_until(streams[-1], b"first")
        refused = client.ask("GET", path)
        assert (refused.status, refused.json["details"]["limit"]) == (429, "exposed_requests")
    finally:
        for stream in streams:
            stream.close()
    wait_until(lambda: client.ask("GET", path).status == 200, "there is room again")


def test_only_so_many_ports_have_urls(client: Client) -> None:
    sandbox_id = client.create()
    for port in range(9000, 9032):
        expose(client, sandbox_id, port)
    refused = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/ports", {"port": PORT})
    assert (refused.status, refused.json["details"]["limit"]) == (429, "exposed_ports")
    assert client.ask("DELETE", f"/v1/sandboxes/{sandbox_id}/ports/9000").status == 204
    expose(client, sandbox_id)
    client.remove(sandbox_id)


@pytest.mark.parametrize("port", [0, -1, 65536, 1.5, "8000", None, True])
def test_a_port_is_a_number(client: Client, shared: tuple[str, str], port: object) -> None:
    answer = client.ask("POST", f"/v1/sandboxes/{shared[0]}/ports", {"port": port})
    assert (answer.status, answer.json["details"]["argument"]) == (400, "port")


def test_ports_of_the_network_itself_are_not_exposed(client: Client) -> None:
    networked, plain = client.create(egress=[]), client.create()
    for port in OWN_PORTS:
        refused = client.ask("POST", f"/v1/sandboxes/{networked}/ports", {"port": port})
        assert (refused.status, refused.json["details"]["argument"]) == (400, "port")
        expose(client, plain, port)
    client.remove(networked)
    client.remove(plain)


# As the SDK does it


def test_frames_expose_and_take_back(client: Client, shared: tuple[str, str]) -> None:
    sandbox_id, path = shared
    (told,) = client.call(calls.EXPOSE, {"sandbox": sandbox_id, "port": PORT}).frames
    assert (told.kind, told.header["url"], told.header["port"]) == (calls.ANSWER, path, PORT)
    (other,) = client.call(calls.EXPOSE, {"sandbox": sandbox_id, "port": 9000}).frames
    assert client.call(calls.UNEXPOSE, {"sandbox": sandbox_id, "port": 9000}).frames[0].kind == calls.ANSWER
    assert client.ask("GET", str(other.header["url"])).status == 404
    unknown = client.call(calls.EXPOSE, {"sandbox": f"sbx_{'0' * 32}", "port": 9000})
    assert unknown.status == 404


def test_frames_do_not_dial(client: Client, shared: tuple[str, str]) -> None:
    refused = client.call(calls.DIAL, {"sandbox": shared[0], "port": PORT})
    assert refused.status == 400
    assert json.loads(refused.body)["code"] == "protocol_error"
