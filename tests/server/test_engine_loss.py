"""The engine dies, the worker dies, the server is told to stop: what callers see of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.protocol import calls
from ramet.protocol.frames import encode
from tests.processes import command_line, descendants
from tests.server.running import Server, running_server
from tests.server.talking import Answer, Client, wait_until

_ENDLESS = "print('begun', flush=True)\nwhile True: pass"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path, "--grace", "2") as started:
        yield started


@pytest.fixture
def talker(server: Server) -> Iterator[Client]:
    client = Client(server.port)
    yield client
    client.close()


def kill_worker(server: Server) -> None:
    for pid in descendants(server.process.pid):
        if b"ramet.doors.http.processes.confined_worker" in command_line(pid):
            os.kill(pid, signal.SIGKILL)


class Streaming:
    """A cell that runs, and what comes of it."""

    def __init__(self, client: Client, sandbox_id: str, format_name: str) -> None:
        self._client = Client(client.port)
        if format_name == "frames":
            header = {"sandbox": sandbox_id, "language": "python", "timeout": None, "stream": True}
            self._response = self._client.send("POST", "/v1/call", encode(calls.RUN, header, _ENDLESS.encode()))
        else:
            body = {"code": _ENDLESS, "format": format_name}
            self._response = self._client.send("POST", f"/v1/sandboxes/{sandbox_id}/exec", body)
        self.execution = self._response.headers["ramet-execution"]
        self._said = self._response.read1(65536)
        while b"begun" not in self._said:
            self._said += self._response.read1(65536)

    def rest(self) -> Answer:
        said = self._said + self._response.read()
        self.close()
        return Answer(self._response.status, {}, said)

    def close(self) -> None:
        self._client.close()


@pytest.mark.deep("restarts")
def test_a_lost_engine_ends_every_stream_with_an_error(server: Server, talker: Client) -> None:
    ids = [talker.create() for _ in range(3)]
    lines, chunks, frames = (
        Streaming(talker, sandbox_id, name) for sandbox_id, name in zip(ids, ("lines", "chunks", "frames"), strict=True)
    )
    server.kill_engine()
    events = lines.rest().events
    assert [event["type"] for event in events] == ["stdout", "stderr", "exit"]
    assert "engine" in events[1]["data"]
    assert events[2]["data"] == -1
    events = chunks.rest().events
    assert [event["type"] for event in events] == ["stdout", "error", "exit"]
    assert (events[1]["code"], events[2]["data"]) == ("engine_lost", -1)
    last = frames.rest().frames[-1]
    assert calls.read_error(last.header).code == "engine_lost"

    # Until there is a new one, calls are refused in words that a client understands.
    answer = talker.ask("POST", "/v1/sandboxes", {})
    assert answer.status in (201, 503)
    if answer.status == 503:
        assert (answer.json["code"], answer.headers["retry-after"]) == ("engine_lost", "1")
    wait_until(lambda: talker.ask("POST", "/v1/sandboxes", {}).status == 201, "there is a new engine")

    # What was there is not forgotten, and not there.
    answer = talker.execute(ids[0], "1")
    assert (answer.status, answer.json["details"]["cause"]) == (410, "lost")
    answer = talker.call(calls.INFO, {"sandbox": ids[1]})
    assert (answer.status, calls.read_error(answer.frames[0].header).details["cause"]) == (410, "lost")


@pytest.mark.deep("restarts")
@pytest.mark.promise("survive-worker")
def test_after_a_kill_of_the_worker_the_cell_goes_on_and_its_result_is_there(server: Server, talker: Client) -> None:
    sandbox_id = talker.create()
    talker.execute(sandbox_id, "x = 41")
    running = Streaming(talker, sandbox_id, "chunks")
    kill_worker(server)
    with pytest.raises((http.client.HTTPException, OSError)):
        running.rest()
    running.close()
    talker.close()
    path = f"/v1/sandboxes/{sandbox_id}/executions/{running.execution}"
    wait_until(lambda: _status(talker, path) == 200, "a new worker answers")
    assert talker.ask("GET", path).json["state"] == "running"
    assert talker.ask("POST", f"{path}/cancel").json == {"cancelled": True}
    assert talker.ask("GET", f"{path}?wait=true").json["result"]["interrupted"]
    assert talker.stdout(sandbox_id, "print(x + 1)") == "42"
    replayed = talker.ask("GET", f"/v1/sandboxes/{sandbox_id}/replay").events
    assert ("stdout", "begun") in [(event["type"], event["data"]) for event in replayed]


def _status(client: Client, path: str) -> int:
    try:
        return client.ask("GET", path).status
    except (http.client.HTTPException, OSError):
        client.close()
        return 0


@pytest.mark.promise("survive-server")
def test_after_a_kill_of_the_server_everything_is_there_again(server: Server, talker: Client) -> None:
    sandbox_id = talker.create()
    talker.execute(sandbox_id, "x = 41\nprint('first')")
    running = Streaming(talker, sandbox_id, "lines")
    waiting = Client(server.port)
    thread = threading.Thread(target=_swallow, args=(waiting, sandbox_id, "print(x + 1)", "exe_" + "b" * 32))
    thread.start()
    wait_until(lambda: talker.ask("GET", "/v1/sandboxes").json["sandboxes"][0]["waiting"] == 1, "a cell waits")
    server.kill()
    thread.join(60)
    talker.close()
    server.start(port=server.port)
    path = f"/v1/sandboxes/{sandbox_id}/executions"
    assert talker.ask("GET", f"{path}/{running.execution}").json["state"] == "running"
    assert talker.ask("GET", f"{path}/exe_{'b' * 32}").json["state"] == "waiting"
    assert talker.ask("POST", f"{path}/{running.execution}/cancel").json["cancelled"]
    assert talker.ask("GET", f"{path}/exe_{'b' * 32}?wait=true").json["result"]["stdout"] == "42\n"
    replayed = [event["data"] for event in talker.ask("GET", f"/v1/sandboxes/{sandbox_id}/replay").events]
    assert replayed[0] == "first"
    assert "42" in replayed
    waiting.close()
    running.close()


def _swallow(client: Client, sandbox_id: str, code: str, execution: str) -> None:
    try:
        client.execute(sandbox_id, code, execution_id=execution)
    except (http.client.HTTPException, OSError):
        pass  # the server was killed


# A graceful stop


@pytest.mark.deep("restarts")
def test_a_stop_lets_running_cells_end_and_begins_nothing_new(server: Server, talker: Client) -> None:
    sandbox_id = talker.create()
    running = Client(server.port)
    code = "import os, time\nprint('begun')\nwhile not os.path.exists('/root/go'): time.sleep(0.005)\nprint('end')"
    response = running.send("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": code})
    assert json.loads(response.readline())["data"] == "begun"
    other = Client(server.port)
    assert other.ask("GET", "/v1/healthz").status == 200
    server.tell_to_stop()
    wait_until(lambda: _refused(talker), "nothing new begins")
    for refused in (talker.execute(sandbox_id, "1"), talker.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 1})):
        assert (refused.status, refused.json["code"]) == (503, "engine_closed")
        assert refused.error == "the server is stopping"
    assert talker.ask("PUT", f"/v1/sandboxes/{sandbox_id}/files?path=/root/go", b"").status == 204
    assert [json.loads(line)["data"] for line in response.read().splitlines() if line] == ["end", 0]
    assert server.wait() == 0
    for one in (running, other):
        one.close()


def _refused(client: Client) -> bool:
    return client.ask("POST", "/v1/sandboxes", {}).status == 503


@pytest.mark.deep("restarts")
def test_a_stop_ends_what_does_not_end_by_itself(server: Server, talker: Client) -> None:
    lines = Streaming(talker, talker.create(), "lines")
    frames = Streaming(talker, talker.create(), "frames")
    server.tell_to_stop()
    events = lines.rest().events
    assert [event["type"] for event in events] == ["stdout", "stderr", "exit"]
    assert "the server is stopping" in events[1]["data"]
    assert calls.read_error(frames.rest().frames[-1].header).code == "engine_closed"
    assert server.wait() == 0


@pytest.mark.deep("restarts")
def test_idle_connections_do_not_hold_up_a_stop(server: Server) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(20)]
    held[0].sendall(b"GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert held[0].recv(65536)
    server.tell_to_stop()
    assert server.wait() == 0
    for connection in held:
        connection.close()
