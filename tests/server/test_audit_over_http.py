"""Who did what to which sandbox is in the audit log of a server, whatever became of it; what they did is not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.protocol import calls
from tests.cli.commands import ramet
from tests.server.running import Server, running_server, worker_pid
from tests.server.talking import Client, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here: each has keys and sandboxes of its own."""
    with running_server(tmp_path_factory.mktemp("a")) as one:
        yield one


def audit(server: Server) -> list[dict[str, Any]]:
    file = server.state / "audit.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for(server: Server, **wanted: object) -> dict[str, Any]:
    """The first line in which all of this stands."""

    def found() -> dict[str, Any] | None:
        lines = audit(server)
        return next((line for line in lines if all(line.get(name) == value for name, value in wanted.items())), None)

    wait_until(found, f"the audit log says {wanted}")
    line = found()
    assert line is not None
    return line


def test_what_a_key_did_is_there_and_its_code_output_paths_and_secret_are_not(server: Server) -> None:
    key = server.create_key("ci")
    client = Client(server.port, key)
    sandbox_id = client.create(env={"TOKEN": "environment-value"})
    client.execute(sandbox_id, "print('in' + 'side-output')  # secret-code")
    run = {"sandbox": sandbox_id, "language": "python", "timeout": None, "stream": False}
    client.call(calls.RUN, run, b"1 / 0  # secret-code")
    client.ask("PUT", f"/v1/sandboxes/{sandbox_id}/files?path=secret-path", b"secret-content")
    client.ask("GET", f"/v1/sandboxes/{sandbox_id}/files?path=secret-path")
    child = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 2}).json["children"]
    client.remove(sandbox_id)
    client.close()
    owner = wait_for(server, action="delete", sandbox=sandbox_id)["key_id"]
    lines = [line for line in audit(server) if line["key"] == "ci" and line["action"] != "key create"]
    assert [(line["action"], line.get("phase"), line.get("outcome")) for line in lines] == [
        ("create", None, "ok"),
        ("run", "begin", None),
        ("run", "end", "ok"),
        ("run", "begin", None),
        ("run", "end", "failed"),
        ("upload", None, "ok"),
        ("download", None, "ok"),
        ("fork", None, "ok"),
        ("delete", None, "ok"),
    ]
    assert {(line["key"], line["key_id"], line["sandbox"]) for line in lines} == {("ci", owner, sandbox_id)}
    assert lines[1]["execution"] == lines[2]["execution"] != lines[4]["execution"]
    assert lines[5]["received_bytes"] == lines[6]["sent_bytes"] == len("secret-content")
    assert lines[7]["made"] == child
    said = (server.state / "audit.jsonl").read_text()
    for hidden in ("secret", "inside-output", "environment-value", key):
        assert hidden not in said


def test_what_was_refused_is_there_with_the_reason_and_strangers_are_not(server: Server) -> None:
    small, stranger = Client(server.port, server.create_key("small", "--sandboxes", "0")), Client(server.port, "wrong")
    assert small.ask("POST", "/v1/sandboxes", {}).status == 429
    for _ in range(20):
        assert stranger.ask("POST", "/v1/sandboxes", {}).status == 401
    assert small.ask("POST", "/v1/sandboxes/sbx_" + "0" * 32 + "/exec", {"code": "1"}).status == 404
    line = wait_for(server, action="create", key="small")
    assert (line["outcome"], line["error"]) == ("refused", "limit_reached")
    line = wait_for(server, action="run", phase="end", key="small")
    assert (line["outcome"], line["error"]) == ("refused", "sandbox_closed")
    assert {line["key"] for line in audit(server)} <= {"ci", "small", "local", "changing", "a-user", "admin"}
    assert not [line for line in audit(server) if line.get("error") == "unauthorized"]
    small.close()
    stranger.close()


def test_a_cell_that_ran_when_the_worker_was_killed_is_there(server: Server) -> None:
    client = Client(server.port)
    sandbox_id = client.create()
    response = client.send(
        "POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": "print(1, flush=True)\nimport time\ntime.sleep(600)"}
    )
    response.readline()
    os.kill(worker_pid(server), signal.SIGKILL)
    line = wait_for(server, action="run", sandbox=sandbox_id)
    assert (line["phase"], line["key"]) == ("begin", "local")
    client.close()
    again = Client(server.port)
    again.ask("DELETE", f"/v1/sandboxes/{sandbox_id}")
    assert wait_for(server, action="delete", sandbox=sandbox_id)["outcome"] == "ok"
    again.close()


@pytest.mark.deep("restarts")
def test_key_changes_and_ends_by_the_clock_are_there(server: Server) -> None:
    state = str(server.state)
    server.create_key("changing")
    assert ramet("keys", "set", "changing", "--sandboxes", "3", "--state", state).returncode == 0
    assert ramet("keys", "rotate", "changing", "--grace", "1h", "--state", state).returncode == 0
    assert ramet("keys", "revoke", "changing", "--state", state).returncode == 0
    lines = [line for line in audit(server) if line["key"] == "changing"]
    assert [line["action"] for line in lines] == ["key create", "key set", "key rotate", "key revoke"]
    assert {line["uid"] for line in lines} == {os.getuid()}
    client = Client(server.port)
    sandbox_id = client.create(timeout_seconds=0.1)
    line = wait_for(server, action="end", sandbox=sandbox_id)
    assert (line["key"], line["outcome"]) == ("local", "timeout")
    client.close()


def test_an_operator_who_ends_a_sandbox_is_there_with_whose_it_was(server: Server) -> None:
    user, admin = Client(server.port, server.create_key("a-user")), server.create_key("admin", "--operator")
    sandbox_id = user.create()
    operator = Client(server.port, admin)
    operator.ask("GET", "/v1/sandboxes")
    operator.ask("GET", f"/v1/sandboxes/{sandbox_id}")
    operator.ask("DELETE", f"/v1/sandboxes/{sandbox_id}")
    line = wait_for(server, action="delete", sandbox=sandbox_id)
    assert (line["key"], line["sandbox_key"]) == ("admin", "a-user")
    assert wait_for(server, action="inspect")["sandbox_key"] == "a-user"
    assert wait_for(server, action="list all")["key"] == "admin"
    user.close()
    operator.close()


@pytest.mark.deep("restarts")
def test_without_an_audit_log_there_is_none(tmp_path: Path) -> None:
    with running_server(tmp_path, "--audit-log-mib", "0") as server:
        client = Client(server.port)
        client.remove(client.create())
        client.close()
    assert not list(server.state.glob("audit*"))
