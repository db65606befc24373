"""Clients that hang up, stop reading, or stop sending in the middle of something."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.protocol import calls
from ramet.protocol.frames import encode
from tests.server.engines import KeeperProcess
from tests.server.talking import Answer, Client, raw_connection, wait_until
from tests.server.workers import WorkerProcess, running_worker

_CALL = b"POST /v1/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
_ENDLESS = "print('begun', flush=True)\nwhile True: pass"


def _begin(client: Client, sandbox_id: str, code: str, **fields: object) -> tuple[socket.socket, str]:
    """A cell that has printed something, on a connection of its own; its execution id."""
    body = json.dumps({"code": code, **fields}).encode()
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=60)
    connection.sendall(
        b"POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
        % (sandbox_id.encode(), len(body), body)
    )
    said = b""
    while b"begun" not in said:
        said += connection.recv(65536)
    execution = next(line.split(b": ")[1] for line in said.split(b"\r\n") if line.startswith(b"ramet-execution"))
    return connection, execution.decode()


def _state(client: Client, sandbox_id: str, execution: str) -> str:
    return str(client.ask("GET", f"/v1/sandboxes/{sandbox_id}/executions/{execution}").json["state"])


@pytest.mark.promise("survive-disconnect")
def test_a_cell_goes_on_without_its_client_and_its_result_can_be_fetched(client: Client, sandbox_id: str) -> None:
    code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): pass\nprint('end')\n42"
    connection, execution = _begin(client, sandbox_id, code)
    connection.close()
    assert _state(client, sandbox_id, execution) == "running"
    client.call(calls.WRITE, {"sandbox": sandbox_id, "path": "go", "more": False})
    answer = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/executions/{execution}?wait=true").json
    assert (answer["result"]["stdout"], answer["result"]["value"]) == ("begun\nend\n", "42")


@pytest.mark.parametrize("format_name", ["lines", "chunks"])
def test_a_cell_that_is_to_end_with_its_client_does(client: Client, sandbox_id: str, format_name: str) -> None:
    connection, execution = _begin(client, sandbox_id, _ENDLESS, on_disconnect="interrupt", format=format_name)
    connection.close()
    wait_until(lambda: _state(client, sandbox_id, execution) == "finished", "the cell is interrupted")
    assert client.stdout(sandbox_id, "print('goes on')") == "goes on"


@pytest.mark.parametrize("wish", ["keep", "interrupt"])
def test_a_call_of_the_sdk_that_is_given_up(client: Client, sandbox_id: str, wish: str) -> None:
    execution = "exe_" + "a" * 32
    header = {"sandbox": sandbox_id, "language": "python", "timeout": None, "stream": False, "execution": execution}
    frame = encode(calls.RUN, {**header, "on_disconnect": wish}, b"while True: pass")
    with raw_connection(client.port) as connection:
        connection.sendall(_CALL % len(frame) + frame)
        path = f"/v1/sandboxes/{sandbox_id}/executions/{execution}"
        wait_until(lambda: client.ask("GET", path).status == 200, "the cell runs")
    if wish == "interrupt":
        wait_until(lambda: _state(client, sandbox_id, execution) == "finished", "the cell is interrupted")
    else:
        assert _state(client, sandbox_id, execution) == "running"
        assert client.ask("POST", f"{path}/cancel").json["cancelled"]


def test_a_cell_that_is_kept_and_prints_much_is_not_held_up_by_nobody_reading(client: Client, sandbox_id: str) -> None:
    code = "print('begun', flush=True)\nfor _ in range(200): print('x' * 100_000)\nprint('end')"
    connection, execution = _begin(client, sandbox_id, code)
    connection.close()
    answer = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/executions/{execution}?wait=true").json
    assert answer["result"]["exit_code"] == 0
    assert answer["result"]["stdout"].endswith("end\n")


def test_a_create_that_nobody_waits_for_leaves_no_sandbox(client: Client) -> None:
    frame = encode(calls.CREATE, {"template": "slow-to-boot", "preload": ["IPython.core.debugger", "ensurepip"]})
    with raw_connection(client.port) as connection:
        connection.sendall(_CALL % len(frame) + frame)
    assert client.call(calls.CREATE, {"template": "slow-to-boot", "preload": ["IPython.core.debugger", "ensurepip"]})
    wait_until(lambda: len(client.ask("GET", "/v1/sandboxes").json["sandboxes"]) == 1, "only the second is there")


def test_an_upload_that_breaks_off_harms_nobody(client: Client, sandbox_id: str) -> None:
    frame = encode(calls.WRITE, {"sandbox": sandbox_id, "path": "half", "more": True})
    frame += encode(calls.CHUNK, {}, b"x" * 1000)
    with raw_connection(client.port) as connection:
        connection.sendall(_CALL % 9_999_999 + frame)
    assert client.stdout(sandbox_id, "print('goes on')") == "goes on"
    header = {"sandbox": sandbox_id, "path": "half", "more": False}
    wait_until(lambda: client.call(calls.WRITE, header, b"whole").status == 200, "the file can be written")


# A worker that does not wait long


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[WorkerProcess]:
    keeper = KeeperProcess(tmp_path / "state")
    try:
        with running_worker(tmp_path, unread_seconds=1.0, heartbeat_seconds=0.2, engine_seconds=30.0) as worker:
            yield worker
    finally:
        keeper.close()


@pytest.mark.deep("load")
def test_a_client_that_reads_nothing_is_cut_off_and_its_cell_ends(impatient: WorkerProcess) -> None:
    client = Client(impatient.port)
    sandbox_id = client.create()
    code = "print('begun', flush=True)\nfor _ in range(300): print('x' * 100_000)"
    connection, execution = _begin(client, sandbox_id, code)
    # It is not read from any more, and the cell, which blocks in print, goes on once the connection is given up.
    answer = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/executions/{execution}?wait=true").json
    assert answer["result"]["exit_code"] == 0
    connection.close()
    client.close()


@pytest.mark.deep("restarts")
def test_silence_is_broken_by_something_that_means_nothing(impatient: WorkerProcess) -> None:
    client = Client(impatient.port)
    sandbox_id = client.create()
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\nos.remove('go')\nprint('late')"
    answer = _answer_to(client, sandbox_id, f"/v1/sandboxes/{sandbox_id}/exec", {"code": code})
    assert answer.body.startswith(b"\n")
    assert [event["data"] for event in answer.events] == ["late", 0]
    header = {"sandbox": sandbox_id, "language": "python", "timeout": None, "stream": True}
    frames = _answer_to(client, sandbox_id, "/v1/call", encode(calls.RUN, header, code.encode())).frames
    assert frames[0].kind == calls.HEARTBEAT
    assert [frame.kind for frame in frames if frame.kind != calls.HEARTBEAT] == [calls.OUTPUT, calls.RESULT]
    client.close()


def _answer_to(client: Client, sandbox_id: str, path: str, body: object) -> Answer:
    """Of a cell that ends after something was said while it was silent."""
    response = client.send("POST", path, body)
    first = response.read1(65536)
    other = Client(client.port)
    other.call(calls.WRITE, {"sandbox": sandbox_id, "path": "go", "more": False})
    other.close()
    return Answer(response.status, {}, first + response.read())


@pytest.mark.deep("restarts")
def test_a_long_create_is_not_silent(impatient: WorkerProcess) -> None:
    client = Client(impatient.port)
    request = {"template": "slow", "preload": ["numpy", "pandas", "matplotlib.pyplot"]}
    frames = client.call(calls.CREATE, request, headers={"Idempotency-Key": "slow"}).frames
    assert frames[0].kind == calls.HEARTBEAT
    assert frames[-1].kind == calls.ANSWER
    client.close()
