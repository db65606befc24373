"""Whether a server lives, has an engine and takes work are three questions, each with a path of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.running import running_server
from tests.server.talking import Client, wait_until
from tests.server.workers import running_worker


def test_a_server_without_an_engine_lives_and_is_not_ready(tmp_path: Path) -> None:
    with running_worker(tmp_path) as worker:
        client = Client(worker.port)
        assert client.ask("GET", "/v1/livez").body == b"ok"
        assert client.ask("GET", "/v1/healthz").status == 503
        answer = client.ask("GET", "/v1/readyz")
        assert (answer.status, answer.json) == (
            503,
            {"ready": False, "engine": False, "stopping": False, "room": True},
        )
        assert int(answer.headers["retry-after"]) >= 1
        client.close()


@pytest.mark.deep("restarts")
def test_a_server_that_was_told_to_stop_lives_and_takes_no_work(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client, busy = Client(server.port), Client(server.port)
        assert client.ask("GET", "/v1/readyz").json == {
            "ready": True,
            "engine": True,
            "stopping": False,
            "room": True,
        }
        sandbox_id = client.create()
        waits = "import time, pathlib\nprint(1, flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
        response = busy.send("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": waits})
        response.readline()
        server.tell_to_stop()
        wait_until(lambda: client.ask("GET", "/v1/readyz").status == 503, "it says that it is stopping")
        answer = client.ask("GET", "/v1/readyz").json
        assert (answer["engine"], answer["stopping"]) == (True, True)
        assert client.ask("GET", "/v1/livez").status == 200
        assert client.ask("POST", "/v1/sandboxes", {}).status == 503
        # What is there goes on: the cell gets its file, and its end is told.
        assert client.ask("PUT", f"/v1/sandboxes/{sandbox_id}/files?path=go", b"").status == 204
        assert b'"exit","data":0' in response.read()
        busy.close()
        client.close()
        assert server.wait() == 0


def test_an_unknown_field_of_the_question_is_refused(client: Client) -> None:
    assert client.ask("GET", "/v1/readyz?rooms=true").status == 400
