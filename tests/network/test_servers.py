"""The servers of these tests do what the tests rely on, for clients of this machine."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import trustme

from tests.network import servers
from tests.network.git_repository import git_over_http, make_repository
from tests.network.package_index import package_index, wheel
from tests.network.routes import http_serving, websocket_frame
from tests.network.servers import Server

# Without the variables of whoever runs the tests.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str) -> bytes:
    with _DIRECT.open(url, timeout=servers.WAIT_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def test_an_http_server_answers_and_keeps_what_it_was_asked(http_server: Server) -> None:
    echoed = json.loads(get(http_server.url("/echo?a=1")))
    assert (echoed["method"], echoed["target"], echoed["body"]) == ("GET", "/echo?a=1", "")
    assert http_server.requests[-1].header("host") == f"127.0.0.1:{http_server.port}"
    assert len(get(http_server.url("/bytes/100000"))) == 100_000
    assert get(http_server.url("/chunked/2")) == b"chunk 0\nchunk 1\n"
    assert get(http_server.url("/redirect?to=/status/200")) == b""
    assert get(http_server.url("/events")).count(b"data: ") == 3


def test_an_https_server_has_a_certificate_for_every_name(https_server: Server, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for name in ("data.example", "a.b.example"):
        with socket.create_connection(("127.0.0.1", https_server.port)) as plain:
            with context.wrap_socket(plain, server_hostname=name) as connection:
                connection.sendall(f"GET /echo HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
                assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_a_websocket_echoes(http_server: Server) -> None:
    with socket.create_connection(("127.0.0.1", http_server.port)) as connection:
        connection.settimeout(servers.WAIT_SECONDS)
        connection.sendall(
            b"GET /websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        reader = connection.makefile("rb")
        with reader:
            lines = list(iter(lambda: reader.readline().strip(), b""))
            assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in lines
            connection.sendall(websocket_frame(1, b"hello", b"abcd"))
            assert reader.read(7) == websocket_frame(1, b"hello")


def test_raw_servers_echo_and_speak_first(echo_server: Server, banner_server: Server) -> None:
    with socket.create_connection(("127.0.0.1", echo_server.port)) as connection:
        connection.sendall(b"ping")
        assert connection.recv(10) == b"ping"
    with socket.create_connection(("127.0.0.1", banner_server.port)) as connection:
        assert connection.recv(100) == servers.BANNER


def test_a_git_repository_can_be_cloned(tmp_path: Path) -> None:
    make_repository(tmp_path)
    with http_serving(more=git_over_http(tmp_path)) as server:
        command = ["git", "-c", "http.proxy=", "clone", "-q", server.url("/git/project.git"), str(tmp_path / "copy")]
        subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "copy" / "hello.txt").read_text() == "hello from git\n"


@pytest.mark.deep("load")
def test_a_package_index_can_be_installed_from(tmp_path: Path) -> None:
    with http_serving(more=package_index(wheel("tiny_thing", "1.2"), wheel("tiny_thing", "1.3"))) as server:
        command = [sys.executable, "-m", "pip", "--isolated", "install", "-q", "--proxy", "", "--target", str(tmp_path)]
        subprocess.run([*command, "--index-url", server.url("/simple/"), "tiny-thing"], check=True, timeout=90)
    assert (tmp_path / "tiny_thing.py").read_text() == "version = '1.3'\n"
