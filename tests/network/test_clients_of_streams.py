"""What does not come in one piece passes as it comes: websockets, events, uploads and downloads, by HTTP and HTTPS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from ramet import Language, Network, Sandbox
from tests.network.clients import AUTHORITY_FILE, CELL_SECONDS, TRUST
from tests.network.servers import Server

MEBIBYTES = 8


@pytest.fixture(scope="module")
def connected(http_server: Server, https_server: Server, authority_pem: str) -> Iterator[Sandbox]:
    rules = [server.rule("data.example") for server in (http_server, https_server)]
    with Sandbox(network=Network(rules, addresses={"data.example": "127.0.0.1"}), env=TRUST) as sandbox:
        sandbox.files.write(AUTHORITY_FILE, authority_pem.encode())
        yield sandbox


def run(sandbox: Sandbox, code: str, language: Language = "python") -> str:
    result = sandbox.run_code(code, language=language, timeout=CELL_SECONDS)
    assert result.exit_code == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("trust_env", [True, False], ids=["through the proxy", "raw"])
def test_a_websocket_echoes_both_ways(connected: Sandbox, server: Server, trust_env: bool) -> None:
    code = f"""
        import aiohttp
        async with aiohttp.ClientSession(trust_env={trust_env}) as session:
            async with session.ws_connect({server.url("/websocket", "data.example")!r}) as socket:
                await socket.send_str("hello")
                print(await socket.receive_str())
                await socket.send_bytes(bytes(300_000))
                print(len(await socket.receive_bytes()))
    """
    assert run(connected, code) == "hello\n300000\n"


def test_the_first_half_of_an_answer_arrives_before_the_second_is_there(connected: Sandbox, server: Server) -> None:
    server.released.clear()
    code = f"""
        import httpx
        client = httpx.Client(timeout=30)
        answer = client.send(client.build_request("GET", {server.url("/slow", "data.example")!r}), stream=True)
        pieces = answer.iter_bytes()
        print(next(pieces))
    """
    assert run(connected, code) == "b'first'\n"
    server.released.set()
    assert run(connected, "print(b''.join(pieces)); client.close()") == "b' half'\n"


def test_server_sent_events_arrive(connected: Sandbox, server: Server) -> None:
    url = server.url("/events", "data.example")
    code = f"""
        import httpx
        with httpx.stream("GET", {url!r}) as answer:
            print([line for line in answer.iter_lines() if line])
    """
    assert run(connected, code) == "['data: event 0', 'data: event 1', 'data: event 2']\n"


def test_an_upload_of_unknown_length_arrives_whole(connected: Sandbox, server: Server) -> None:
    code = f"""
        import requests
        pieces = (bytes([n % 256]) * 10_000 for n in range(100))
        print(requests.post({server.url("/echo", "data.example")!r}, data=pieces, timeout=30).status_code)
    """
    assert run(connected, code) == "200\n"
    arrived = server.requests[-1]
    assert arrived.body == b"".join(bytes([n % 256]) * 10_000 for n in range(100))
    assert arrived.header("Content-Length") is None


def test_curl_uploads_a_file_that_it_was_told_to_go_on_with(connected: Sandbox, server: Server) -> None:
    url = server.url("/echo", "data.example")
    command = f"curl -sS -H 'Expect: 100-continue' -T up -o /dev/null -w '%{{http_code}}' '{url}'"
    assert run(connected, f"head -c 2000000 /dev/zero > up; {command}", "bash") == "200"
    assert (server.requests[-1].method, server.requests[-1].body) == ("PUT", bytes(2_000_000))


def test_a_large_download_is_the_same_byte_for_byte(connected: Sandbox, server: Server) -> None:
    count = MEBIBYTES << 20
    url = server.url(f"/bytes/{count}", "data.example")
    digest = hashlib.sha256((bytes(range(256)) * 256 * (count // 65536 + 1))[:count]).hexdigest()
    assert run(connected, f"curl -sS '{url}' | sha256sum", "bash").split()[0] == digest


def test_an_answer_without_a_body_is_told_from_one_with(connected: Sandbox, server: Server) -> None:
    code = f"""
        import requests
        with requests.Session() as session:
            print(session.head({server.url("/bytes/1000", "data.example")!r}).headers["Content-Length"])
            print(session.get({server.url("/status/204", "data.example")!r}).status_code)
            print(session.get({server.url("/gzip", "data.example")!r}).text.strip())
            print(session.get({server.url("/chunked/2", "data.example")!r}).text.split())
    """
    assert run(connected, code) == "1000\n204\nsqueezed\n['chunk', '0', 'chunk', '1']\n"


def test_requests_of_one_session_share_an_entry_of_the_log(connected: Sandbox, server: Server) -> None:
    before = len(connected.network.log())
    code = f"""
        import requests
        with requests.Session() as session:
            for _ in range(5):
                assert session.get({server.url("/bytes/1000", "data.example")!r}).ok
    """
    run(connected, code)
    new = connected.network.log()[before:]
    assert [(one.host, one.port, one.allowed) for one in new] == [("data.example", server.port, True)]
    assert new[0].received_bytes > 5000
