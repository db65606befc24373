"""What was tried against a server by clients that want to take it down, or to be taken for somebody else."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ramet.doors.http.processes.keeper_client import child_environment
from ramet.doors.http.requests.bodies import parse_object
from ramet.errors import InvalidArgument
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.transport.locking import FileLock, holder
from tests.server.running import Server, running_server, worker_pid
from tests.server.talking import WAIT_SECONDS, Client, raw_connection, read_all, wait_until
from tests.server.workers import running_worker


@pytest.fixture(scope="module")
def locked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that asks everybody for a key."""
    with running_server(tmp_path_factory.mktemp("locked"), "--require-key") as server:
        yield server


@pytest.fixture(scope="module")
def key(locked_server: Server) -> str:
    return locked_server.create_key("alice")


@pytest.fixture
def alice(locked_server: Server, key: str) -> Iterator[Client]:
    client = Client(locked_server.port, key)
    yield client
    client.close()


def said_to(port: int, *parts: bytes) -> bytes:
    with raw_connection(port) as connection:
        connection.sendall(b"".join(parts))
        return read_all(connection)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# Words that mean one thing to a proxy and another to us


def test_a_header_behind_the_body_means_nothing(locked_server: Server, key: str) -> None:
    head = b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    trailer = b"0\r\nAuthorization: Bearer " + key.encode() + b"\r\n\r\n"
    assert status(said_to(locked_server.port, head, trailer)) == 401


@pytest.mark.parametrize("begun", [b"0\r\nX-Trailer: ", b"2\r\n{}\r\n0\r\nX-Trailer: ", b"5;name="])
def test_a_body_whose_end_does_not_end_is_refused(locked_server: Server, key: str, begun: bytes) -> None:
    """The parser keeps a header until it is whole, also one behind the body."""
    head = b"POST /v1/call HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n"
    with raw_connection(locked_server.port) as connection:
        connection.sendall(head % key.encode() + begun)
        with pytest.raises(ConnectionError):
            connection.sendall(b"a" * 32_000_000)  # more than lies on the way


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_a_request_is_not_carried_out_without_its_body(
    locked_server: Server, key: str, alice: Client, protocol: bytes
) -> None:
    """The parser takes what follows a wish to change the protocol for that protocol."""
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key.encode() + b"\r\n"
    wish = b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\nContent-Length: 14\r\n\r\n"
    assert status(said_to(locked_server.port, head, wish, b'{"nonsense":1}')) == 400
    assert alice.ask("GET", "/v1/sandboxes").json["sandboxes"] == []


@pytest.mark.parametrize(
    "head", [b"GET /v1/healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
             b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n"]
)  # fmt: skip
def test_nothing_is_read_behind_a_wish_to_change_the_protocol(locked_server: Server, head: bytes) -> None:
    answer = said_to(locked_server.port, head, b"GET /v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"Content-Length: 4\r\nContent-Length: 5",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding : chunked",
        b"Content-Length: +4",
    ],
)
def test_a_body_whose_end_is_not_certain_is_refused(locked_server: Server, key: str, framing: bytes) -> None:
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key.encode() + b"\r\n"
    behind = b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key.encode() + b"\r\n\r\n"
    answer = said_to(locked_server.port, head, framing, b"\r\n\r\n0\r\n\r\n", behind)
    assert (status(answer), answer.count(b"HTTP/1.1 ")) == (400, 1)


# Bodies that take long to read


def seconds_of(act: object) -> float:
    began = time.thread_time()
    with pytest.raises(InvalidArgument):
        act()  # type: ignore[operator]
    return time.thread_time() - began


def test_a_field_given_twice_behind_many_is_found_quickly() -> None:
    """It once took as many steps as there are fields, squared: minutes, for half a megabyte."""
    many = b",".join(b'"%x":0' % number for number in range(80_000))
    assert seconds_of(lambda: parse_object(b"{" + many + b',"twice":0,"twice":0}')) < 10


def test_a_long_body_is_one_text_and_not_many_values() -> None:
    text = b"a = 1\\n" * 1_000_000
    assert parse_object(b' {"code":"%s" , "timeout":1.5,"wait":true,"x":null} ' % text) == {
        "code": text.decode().replace("\\n", "\n"),
        "timeout": 1.5,
        "wait": True,
        "x": None,
    }
    for body in (
        b'{"code":[' + b"0," * 2_000_000 + b"0]}",
        b'{"code":' + b'{"a":' * 500_000 + b"}" * 500_000 + b"}",
        b"{" + b",".join(b'"%x":0' % number for number in range(500_000)) + b"}",
        b'{"code":"' + b"a" * 3_000_000 + b'","code":"b"}',
        b'{"code":"' + b"a" * 3_000_000 + b'"} x',
        b'{"code":"' + b"a" * 3_000_000,
    ):
        assert seconds_of(lambda body=body: parse_object(body)) < 10


def test_a_frame_whose_header_is_longer_than_it_need_be_is_refused(alice: Client) -> None:
    answer = alice.call(calls.INFO, {"sandbox": "sbx_0", "more": [0] * 100_000})
    assert (answer.status, answer.json["code"]) == (400, "protocol_error")


# Connections


def test_who_says_nothing_does_not_keep_out_who_does(tmp_path: Path) -> None:
    with running_worker(tmp_path, connections=20) as worker, ExitStack() as opened:
        wait_until(lambda: status(said_to(worker.port, b"GET /v1/healthz HTTP/1.0\r\n\r\n")) == 503, "the worker is up")
        silent = [opened.enter_context(raw_connection(worker.port)) for _ in range(100)]
        for connection in silent:
            connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(30):
            assert status(said_to(worker.port, b"GET /v1/healthz HTTP/1.0\r\n\r\n")) == 503


@pytest.mark.deep("restarts")
def test_a_connection_that_is_being_answered_is_not_given_up_for_another(tmp_path: Path) -> None:
    with running_server(tmp_path, "--max-connections", "10") as server, ExitStack() as opened:
        client = Client(server.port)
        sandbox_id = client.create()
        response = client.send("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": "print(1)\ninput()\nprint(2)"})
        response.readline()
        for _ in range(50):
            opened.enter_context(raw_connection(server.port)).sendall(b"GET /v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        other = Client(server.port)
        other.ask("POST", f"/v1/sandboxes/{sandbox_id}/interrupt")
        assert b'"exit"' in response.read()
        client.close()
        other.close()


# Memory


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.deep("restarts")
def test_answers_that_nobody_reads_do_not_fill_the_memory(locked_server: Server, key: str, alice: Client) -> None:
    """A result of ten megabytes, asked for again and again by somebody who never takes it."""
    client = alice
    sandbox_id = client.create()
    answer = client.execute(sandbox_id, "print('x' * 9_000_000, end='')", format="json")
    execution = answer.headers["ramet-execution"]
    request = (
        f"GET /v1/sandboxes/{sandbox_id}/executions/{execution} HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {key}\r\n\r\n"
    ).encode()
    with ExitStack() as opened:
        unread = [opened.enter_context(raw_connection(locked_server.port)) for _ in range(60)]
        for connection in unread:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request)
        statuses = [status(connection.recv(64)) for connection in unread]
        assert set(statuses) == {200, 429}
        assert resident_bytes(worker_pid(locked_server)) < 700_000_000
        # Others are served meanwhile.
        other = Client(locked_server.port, locked_server.create_key("reader"))
        assert other.ask("GET", "/v1/sandboxes").status == 200
        other.close()
    wait_until(
        lambda: client.ask("GET", f"/v1/sandboxes/{sandbox_id}/executions/{execution}").status == 200, "there is room"
    )
    client.remove(sandbox_id)


@pytest.mark.deep("restarts")
def test_long_bodies_that_are_never_complete_do_not_fill_the_memory(locked_server: Server, key: str) -> None:
    head = f"POST /v1/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {70 << 20}\r\n\r\n"
    frame = encode(calls.RUN, {"sandbox": "sbx_0"}, b"#" * (65 << 20))
    refused = threading.Event()

    def upload() -> None:
        with raw_connection(locked_server.port) as connection:
            try:
                connection.sendall(head.encode() + frame[: 60 << 20])
                connection.settimeout(1.0)
                if b" 429 " in connection.recv(100):
                    refused.set()
                over.wait(WAIT_SECONDS)
            except OSError:
                pass

    over = threading.Event()
    uploads = [threading.Thread(target=upload) for _ in range(6)]
    for thread in uploads:
        thread.start()
    try:
        assert refused.wait(WAIT_SECONDS)
        assert resident_bytes(worker_pid(locked_server)) < 700_000_000
    finally:
        over.set()
        for thread in uploads:
            thread.join()


def test_calls_of_clients_that_went_away_are_given_up(locked_server: Server, key: str, alice: Client) -> None:
    """What waits behind a cell that never ends must not wait for nobody: each takes a descriptor on both sides."""
    client = alice
    sandbox_id = client.create()
    busy = Client(locked_server.port, key)
    busy.send("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": "print(1)\nwhile True: pass"}).readline()
    descriptors = Path(f"/proc/{worker_pid(locked_server)}/fd")
    before = len(list(descriptors.iterdir()))
    request = (
        f"POST /v1/sandboxes/{sandbox_id}/snapshots HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: 0\r\n\r\n"
    ).encode()
    for _ in range(50):
        with raw_connection(locked_server.port) as connection:
            connection.sendall(request)
    # On a busy machine the last of them are taken in only now: each must go, however long that takes.
    wait_until(lambda: len(list(descriptors.iterdir())) < before + 20, "the descriptors are closed")
    wait_until(lambda: client.ask("GET", f"/v1/sandboxes/{sandbox_id}").json["waiting"] == 0, "nothing waits")
    assert client.ask("GET", f"/v1/sandboxes/{sandbox_id}").json["state"] == "running"
    client.remove(sandbox_id)
    busy.close()


# What a worker that was taken over would find


def test_tokens_and_passwords_in_the_environment_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "RAMET_API_KEY", "NOTIFY_SOCKET", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    passed_on = child_environment()
    assert "secret" not in passed_on.values()
    assert (passed_on["PYTHONPATH"], passed_on["PATH"]) == ("/somewhere", os.environ["PATH"])


# What others believe that a worker may have written


@pytest.mark.parametrize("said", ["1; rm -rf ~", "$(id)", "12 \x1b[2J", "9" * 1000, ""])
def test_a_lock_file_says_a_process_id_or_nothing(tmp_path: Path, said: str) -> None:
    """It becomes part of a command that a message recommends."""
    lock = FileLock.take(tmp_path / "keeper.pid")
    assert lock is not None
    with lock:
        lock.write(said)
        assert holder(tmp_path / "keeper.pid") == ""
        lock.write("123 1.2.3+dev")
        assert holder(tmp_path / "keeper.pid") == "123 1.2.3+dev"
