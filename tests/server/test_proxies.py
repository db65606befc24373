"""Behind the proxies of examples/, as they stand there: streams are not held back, and nothing is cut off."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tests.server.running import Server
from tests.server.talking import WAIT_SECONDS, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_MIB = 1024 * 1024

pytestmark = pytest.mark.deep("libraries")

Connect = Callable[[], http.client.HTTPSConnection]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def nginx(folder: Path, port: int, upstream: int) -> list[str]:
    example = (EXAMPLES / "nginx.conf").read_text()
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:7070", f"127.0.0.1:{upstream}"),
        ("/etc/ssl/ramet.example.pem", str(folder / "chain.pem")),
        ("/etc/ssl/ramet.example.key", str(folder / "key.pem")),
    ):
        assert old in example
        example = example.replace(old, new)
    paths = "\n".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = (
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr warn; "
        f"events {{}}\nhttp {{ access_log off;\n{paths}\n{example}\n}}\n"
    )
    if os.geteuid() == 0:
        whole = f"user root;\n{whole}"
    (folder / "nginx.conf").write_text(whole)
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, upstream: int) -> list[str]:
    example = (EXAMPLES / "Caddyfile").read_text()
    for old, new in (
        (
            "ramet.example {",
            f"https://ramet.example:{port} {{\n\tbind 127.0.0.1\n\ttls {folder}/chain.pem {folder}/key.pem",
        ),
        ("127.0.0.1:7070", f"127.0.0.1:{upstream}"),
    ):
        assert old in example
        example = example.replace(old, new)
    (folder / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + example)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


_PROXIES = {"nginx": nginx, "caddy": caddy}


@pytest.fixture(scope="module", params=sorted(_PROXIES))
def connect(
    request: pytest.FixtureRequest, shared_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connect]:
    """Makes connections to the proxy, as a client on another machine would."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    authority = trustme.CA()
    certificate = authority.issue_cert("ramet.example")
    for blob in certificate.cert_chain_pems:
        with (folder / "chain.pem").open("ab") as chain:
            chain.write(blob.bytes())
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    command = _PROXIES[request.param](folder, port, shared_server.port)
    with (folder / "log").open("wb") as log:
        environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    class Connection(http.client.HTTPSConnection):
        def connect(self) -> None:
            plain = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
            self.sock = trust.wrap_socket(plain, server_hostname="ramet.example")

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            socket.create_connection(("127.0.0.1", port), WAIT_SECONDS).close()
        except ConnectionRefusedError:
            return False
        return True

    try:
        wait_until(answers, "the proxy listens")
        yield lambda: Connection("ramet.example", port, timeout=WAIT_SECONDS)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_SECONDS)


@pytest.fixture(scope="module")
def key(shared_server: Server) -> str:
    return shared_server.create_key("behind-a-proxy")


@pytest.fixture
def talk(connect: Connect, key: str) -> Iterator[Callable[..., http.client.HTTPResponse]]:
    opened: list[http.client.HTTPSConnection] = []

    def ask(method: str, path: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
        connection = connect()
        opened.append(connection)
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request(method, path, data, {"Authorization": f"Bearer {key}", **headers})  # type: ignore[arg-type]
        return connection.getresponse()

    yield ask
    for connection in opened:
        connection.close()


Talk = Callable[..., http.client.HTTPResponse]


@pytest.fixture
def sandbox_id(talk: Talk) -> Iterator[str]:
    made = str(json.loads(talk("POST", "/v1/sandboxes", {}).read())["id"])
    yield made
    talk("DELETE", f"/v1/sandboxes/{made}").read()


def test_a_line_arrives_while_the_cell_still_runs(talk: Talk, sandbox_id: str) -> None:
    waits = (
        "import time, pathlib\nprint('first')\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\nprint('last')"
    )
    stream = talk("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": waits})
    assert json.loads(stream.readline())["data"] == "first"
    # The cell cannot have ended: only this request lets it.
    assert talk("PUT", f"/v1/sandboxes/{sandbox_id}/files?path=go", b"").status == 204
    assert [json.loads(line)["data"] for line in stream.read().splitlines() if line] == ["last", 0]


def test_a_large_file_goes_up_and_comes_down_whole(talk: Talk, sandbox_id: str) -> None:
    content = os.urandom(_MIB) * 40
    path = f"/v1/sandboxes/{sandbox_id}/files?path=large"
    pieces = (content[start : start + _MIB] for start in range(0, len(content), _MIB))
    assert talk("PUT", path, pieces).status == 204  # of unknown length
    assert talk("PUT", path, content).status == 204
    assert talk("GET", path).read() == content


def test_a_server_in_a_sandbox_has_a_url_of_the_proxy_and_websockets(
    talk: Talk, connect: Connect, sandbox_id: str
) -> None:
    switches = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 8000))
def serve():
    connection, _ = listener.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += connection.recv(4096)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n")
    while data := connection.recv(4096):
        connection.sendall(data.upper())
threading.Thread(target=serve, daemon=True).start()
"""
    assert talk("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": switches, "format": "json"}).status == 200
    exposed = json.loads(talk("POST", f"/v1/sandboxes/{sandbox_id}/ports", {"port": 8000}).read())
    assert exposed["url"].startswith("https://ramet.example")
    connection = connect()
    connection.connect()
    connection.sock.sendall(
        f"GET {exposed['path']} HTTP/1.1\r\nHost: ramet.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    said = b""
    while b"\r\n\r\n" not in said:
        said += connection.sock.recv(4096)
    assert said.startswith(b"HTTP/1.1 101")
    connection.sock.sendall(b"through the proxy")
    said = said.partition(b"\r\n\r\n")[2]
    while len(said) < len(b"through the proxy"):
        said += connection.sock.recv(4096)
    assert said == b"THROUGH THE PROXY"
    connection.close()


def test_without_a_key_nobody_comes_in_through_the_proxy(connect: Connect) -> None:
    connection = connect()
    connection.request("GET", "/v1/sandboxes")
    assert connection.getresponse().status in (401, 403)
    connection.close()
