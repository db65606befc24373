"""The command `ramet mcp`: its options, whom it lets in, what it writes where, how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.cli.commands import COMMAND, environment, ramet
from tests.mcp.clients import WAIT_SECONDS, HttpServer, Talk, http_server, talking, text_of

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
HEADERS = {"accept": "application/json, text/event-stream"}


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def call(number: int, code: str) -> dict[str, Any]:
    params = {"name": "run_python", "arguments": {"code": code}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@pytest.mark.deep("restarts")
def test_standard_output_has_nothing_but_the_protocol() -> None:
    """The input ends when all answers are there: it ends the server, and cells that run."""
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    for request in (INITIALIZE, call(2, "print('to stdout'); import os; os.write(2, b'x');"), call(3, "1 / 0")):
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answers.append(json.loads(process.stdout.readline()))
    rest, said = process.communicate(timeout=WAIT_SECONDS)
    assert [one["id"] for one in answers] == [1, 2, 3]
    assert answers[1]["result"]["content"][0]["text"] == "to stdout\nstderr: x"
    assert (rest, said, process.returncode) == ("", "", 0)


@pytest.mark.deep("restarts")
def test_no_sandbox_is_made_for_a_client_that_needs_none() -> None:
    process = start()
    out, said = process.communicate(json.dumps(INITIALIZE) + "\n", timeout=WAIT_SECONDS)
    assert json.loads(out)["result"]["serverInfo"]["name"] == "ramet"
    assert (said, process.returncode) == ("", 0)


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(number: int) -> None:
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    for request in (INITIALIZE, call(2, "x = 1")):
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        process.stdout.readline()
    process.send_signal(number)
    process.wait(WAIT_SECONDS)  # its input is still open
    rest, said = process.communicate(timeout=WAIT_SECONDS)
    assert (rest, said, process.returncode) == ("", "", 128 + number)


async def test_sandboxes_are_made_as_told(tmp_path: Path) -> None:
    options = ("--template", "python-datasci", "--memory-mib", "256")
    async with talking("stdio", None, tmp_path / "log", *options) as talk:
        assert await talk.text("run_python", code="import sys; 'numpy' in sys.modules") == "value: True"
        too_much = await talk.call("run_python", code="data = bytearray(2**30); data[::4096] = b'x' * (2**30 // 4096)")
        assert too_much.is_error


@pytest.mark.deep("restarts")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--template", "nothing-like-it"], "nothing-like-it"),
        (["--memory-mib", "-1"], "memory_mib"),
    ],
)
async def test_a_sandbox_that_cannot_be_made_is_told_to_the_model(
    tmp_path: Path, options: list[str], said: str
) -> None:
    async with talking("stdio", None, tmp_path / "log", *options) as talk:
        made = await talk.call("run_python", code="1")
        assert made.is_error
        assert said in text_of(made)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--http", "--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines, and no key protects it"),
        (["--http", "--api-key-env", "NOT_THERE"], "the environment variable NOT_THERE of --api-key-env is not set"),
        (["--http", "--host", "300.1.1.1"], "300.1.1.1 can be reached from other machines"),
        (["--http", "--port", "70000"], "--port must be from 0 to 65535, got 70000"),
        (["--idle-timeout", "0"], "more than 0 seconds"),
        (["--host", "0.0.0.0"], "--allow-host are for HTTP only"),
        (["--api-key-env", "HOME"], "--allow-host are for HTTP only"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: list[str], said: str) -> None:
    ended = ramet("mcp", *options)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert said in ended.stderr


@pytest.mark.deep("restarts")
def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = ramet("mcp", "--http", "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert "Address already in use" in ended.stderr


def test_without_the_package_the_way_to_get_it_is_told() -> None:
    program = "import sys; sys.modules['mcp'] = None; from ramet.cli.main import main; sys.exit(main(['mcp']))"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_SECONDS, env=environment()
    )
    assert ended.returncode == 1
    assert "pip install '.[mcp]'" in ended.stderr


# --- whom it lets in ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[HttpServer]:
    """A server for which a key is needed."""
    options = ("--api-key-env", "FIRST", "--api-key-env", "SECOND", "--host", "0.0.0.0")
    with http_server(*options, FIRST="first-key", SECOND="second-key") as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        yield server


@asynccontextmanager
async def with_key(url: str, key: str, mode: str) -> AsyncIterator[Talk]:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=WAIT_SECONDS) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield Talk(client, names=mode != "auto")


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("mode", ["auto", "2026-07-28"])
async def test_a_key_opens_and_separates(locked: HttpServer, mode: str) -> None:
    async with with_key(locked.url, "first-key", mode) as one, with_key(locked.url, "second-key", mode) as other:
        assert await one.text("run_python", code="x = 1; x") == "value: 1"
        await other.text("run_python", code="x = 2")
        assert (await other.call("run_python", sandbox=one.sandbox, code="x")).is_error


async def test_a_session_of_one_key_is_not_there_for_another(locked: HttpServer) -> None:
    async with httpx2.AsyncClient(headers=HEADERS, timeout=WAIT_SECONDS) as http:
        first, second = {"authorization": "Bearer first-key"}, {"authorization": "Bearer second-key"}
        opened = await http.post(locked.url, json=INITIALIZE, headers=first)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await http.post(locked.url, json=listing, headers=first | session)).status_code == 200
        assert (await http.post(locked.url, json=listing, headers=second | session)).status_code == 404
        assert (await http.delete(locked.url, headers=second | session)).status_code == 404
        assert (await http.post(locked.url, json=listing, headers=first | session)).status_code == 200


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer wrong", "Bearer first-key2", "Basic first-key", "first-key"])
async def test_without_the_key_nobody_gets_in(locked: HttpServer, key: str) -> None:
    async with httpx2.AsyncClient(headers=HEADERS, timeout=WAIT_SECONDS) as http:
        for method in ("POST", "GET", "DELETE"):
            headers = {"authorization": key} if key else {}
            answered = await http.request(method, locked.url, json=INITIALIZE, headers=headers)
            assert answered.status_code == 401
            assert answered.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:80"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:6274"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "http://OWN"}, 200),
        ({"origin": "https://OWN"}, 403),
        ({"origin": "http://OWN", "host": "localhost:1"}, 403),
        ({"origin": "http://localhost", "host": "localhost"}, 200),
        ({"origin": "http://localhost", "host": "localhost:80"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "http://OWN"}, 200),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
async def test_web_pages_do_not_get_in(server_url: str, headers: dict[str, str], status: int) -> None:
    """Nor those of other ports of this machine: a server in a sandbox may be behind one."""
    own = server_url.split("/")[2]
    headers = {name: value.replace("OWN", own) for name, value in headers.items()}
    async with httpx2.AsyncClient(headers=HEADERS, timeout=WAIT_SECONDS) as http:
        assert (await http.post(server_url, json=INITIALIZE, headers=headers)).status_code == status
        later = {"mcp-protocol-version": "2026-07-28", **headers}
        assert ((await http.post(server_url, json={}, headers=later)).status_code == status) == (status != 200)


@pytest.mark.deep("restarts")
async def test_a_proxy_may_give_it_another_name() -> None:
    with http_server("--allow-host", "sandboxes.example") as server:
        async with httpx2.AsyncClient(headers=HEADERS, timeout=WAIT_SECONDS) as http:
            for headers in (
                {"host": "sandboxes.example"},
                {"host": "sandboxes.example:443", "origin": "https://sandboxes.example"},
                {},
            ):
                assert (await http.post(server.url, json=INITIALIZE, headers=headers)).status_code == 200
            answered = await http.post(server.url, json=INITIALIZE, headers={"host": "evil.example"})
            assert answered.status_code == 421
            for origin in ("https://sandboxes.example:8443", "https://other.example", "http://localhost"):
                headers = {"host": "sandboxes.example", "origin": origin}
                assert (await http.post(server.url, json=INITIALIZE, headers=headers)).status_code == 403


@pytest.mark.deep("restarts")
async def test_many_clients_at_once(server_url: str) -> None:
    async def one(number: int) -> str:
        async with Client(server_url) as client:
            talk = Talk(client, names=False)
            await talk.text("run_python", code=f"x = {number}")
            return await talk.text("run_python", code="x")

    found = await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(8))), WAIT_SECONDS)
    assert found == [f"value: {number}" for number in range(8)]
