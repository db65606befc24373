"""A server in a sandbox, reached from the host: with a network or without, in a parent and in its copy."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import pytest

from ramet import InvalidArgument, Sandbox
from tests.behaviour.faces import AnyExposed, AnySandbox, MakeSandbox
from tests.behaviour.waiting import wait_until

WAIT_SECONDS = 30
PORT = 8000

SERVE = f"""
import http.server, threading
name = "parent"
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{{name}} {{self.path}}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])
    def log_message(self, *_): pass
served = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Answer)
threading.Thread(target=served.serve_forever, daemon=True).start()
"""


def serve(sandbox: AnySandbox) -> None:
    result = sandbox.run_code(SERVE)
    assert result.ok, result.stderr


def got(exposed: AnyExposed, path: str = "/", data: bytes | None = None) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{exposed}{path}", data, WAIT_SECONDS) as answer:
        body: bytes = answer.read()
    return body.decode()


def fails(exposed: AnyExposed) -> bool:
    try:
        got(exposed)
    except OSError:  # refused, cut, or a status of the server between
        return True
    return False


@pytest.mark.every_face
def test_the_host_reaches_a_server_in_a_sandbox_without_a_network(any_sandbox: AnySandbox) -> None:
    serve(any_sandbox)
    exposed = any_sandbox.expose(PORT)
    assert exposed.url.startswith("http://127.0.0.1:")
    assert (str(exposed), exposed.port) == (exposed.url, PORT)
    assert got(exposed, "/page?x=1") == "parent /page?x=1"
    assert got(exposed, "/", b"x" * 100_000 + b"end") == "dne" + "x" * 100_000


def test_a_port_may_be_exposed_before_anything_listens(any_sandbox: AnySandbox) -> None:
    exposed = any_sandbox.expose(PORT)
    assert fails(exposed)
    serve(any_sandbox)
    assert got(exposed, "/a") == "parent /a"


def test_the_same_port_again_is_the_same_url(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.expose(PORT).url == any_sandbox.expose(PORT).url
    assert any_sandbox.expose(PORT + 1).url != any_sandbox.expose(PORT).url


@pytest.mark.every_face
def test_what_is_closed_is_not_reached_any_more(any_sandbox: AnySandbox) -> None:
    serve(any_sandbox)
    exposed = any_sandbox.expose(PORT)
    assert got(exposed) == "parent /"
    exposed.close()
    wait_until(lambda: fails(exposed), "it is closed")
    exposed.close()
    again = any_sandbox.expose(PORT)
    assert got(again) == "parent /"
    any_sandbox.close()
    wait_until(lambda: fails(again), "it is closed with its sandbox")
    again.close()


@pytest.mark.every_face
def test_a_copy_exposes_a_server_of_its_own(make_any_sandbox: MakeSandbox) -> None:
    parent = make_any_sandbox(network=[])
    serve(parent)
    exposed = parent.expose(PORT)
    (child,) = parent.fork(1)
    try:
        child.run_code("name = 'child'")
        of_child = child.expose(PORT)
        assert of_child.url != exposed.url
        assert (got(of_child, "/x"), got(exposed, "/x")) == ("child /x", "parent /x")
        parent.close()
        assert got(of_child, "/y") == "child /y"
    finally:
        child.close()


@pytest.mark.parametrize("port", [0, -1, 70000, True, "8000", 80.5, None])
def test_what_is_no_port_is_refused(any_sandbox: AnySandbox, port: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        any_sandbox.expose(port)
    assert caught.value.argument == "port"


@pytest.mark.parametrize("port", [3128, 3129])
def test_a_port_that_the_network_itself_has_taken_is_refused(make_any_sandbox: MakeSandbox, port: int) -> None:
    sandbox = make_any_sandbox(network=[])
    with pytest.raises(InvalidArgument) as caught:
        sandbox.expose(port)
    assert caught.value.argument == "port"


def test_an_exposed_port_is_closed_by_its_block() -> None:
    with Sandbox() as sandbox:
        serve(sandbox)
        with sandbox.expose(PORT) as exposed:
            assert got(exposed) == "parent /"
            assert str(PORT) in repr(exposed)
        wait_until(lambda: fails(exposed), "it is closed")
