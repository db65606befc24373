"""An operator's key sees and ends the sandboxes of all keys, and does nothing else with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ramet.protocol import calls
from tests.cli.commands import ramet
from tests.server.running import Server
from tests.server.talking import Client


@pytest.fixture(scope="module")
def operator_key(shared_server: Server) -> str:
    return shared_server.create_key("admin", "--operator")


@pytest.fixture(scope="module")
def user_key(shared_server: Server) -> str:
    return shared_server.create_key("a-user")


@pytest.fixture
def operator(shared_server: Server, operator_key: str) -> Iterator[Client]:
    talker = Client(shared_server.port, operator_key)
    yield talker
    talker.close()


@pytest.fixture
def user(shared_server: Server, user_key: str) -> Iterator[Client]:
    talker = Client(shared_server.port, user_key)
    yield talker
    for row in talker.ask("GET", "/v1/sandboxes").json["sandboxes"]:
        talker.remove(row["id"])
    talker.close()


def test_an_operator_sees_all_sandboxes_and_whose_they_are(operator: Client, user: Client, client: Client) -> None:
    theirs, keyless = user.create(), client.create()
    rows = {row["id"]: row for row in operator.ask("GET", "/v1/sandboxes").json["sandboxes"]}
    assert (rows[theirs]["key"], rows[keyless]["key"]) == ("a-user", "local")
    assert rows[theirs]["owner"] == user.ask("GET", "/v1/whoami").json["owner"]
    info = operator.ask("GET", f"/v1/sandboxes/{theirs}").json
    assert (info["id"], info["key"]) == (theirs, "a-user")
    listed: Any = operator.call(calls.SANDBOXES, {}).frames[0].header["sandboxes"]
    assert {row["id"]: row["key"] for row in listed}[theirs] == "a-user"
    assert operator.call(calls.INFO, {"sandbox": theirs}).status == 200
    # Others still see their own, without owners.
    (mine,) = user.ask("GET", "/v1/sandboxes").json["sandboxes"]
    assert mine["id"] == theirs
    assert not {"owner", "key"} & mine.keys()


@pytest.mark.parametrize("face", ["json", "frames"])
def test_an_operator_ends_a_sandbox_of_another_key(operator: Client, user: Client, face: str) -> None:
    theirs = user.create()
    if face == "json":
        assert operator.ask("DELETE", f"/v1/sandboxes/{theirs}").status == 204
    else:
        assert operator.call(calls.CLOSE, {"sandbox": theirs, "wait": True}).status == 200
    answer = user.execute(theirs, "1")
    assert (answer.status, answer.json["details"]["cause"]) == (410, "closed")


def test_an_operator_runs_nothing_and_reads_nothing_in_sandboxes_of_others(operator: Client, user: Client) -> None:
    theirs = user.create()
    user.execute(theirs, "secret = 1")
    for method, path, body in (
        ("POST", "/exec", {"code": "print(secret)"}),
        ("POST", "/fork", {"n": 1}),
        ("POST", "/snapshots", None),
        ("POST", "/extend", {"timeout_seconds": 1}),
        ("GET", "/replay", None),
        ("GET", "/files?path=.bashrc", None),
        ("PUT", "/files?path=x", b"x"),
        ("POST", "/pty", {"argv": ["sh"]}),
        ("GET", "/network", None),
        ("POST", "/ports", {"port": 8000}),
    ):
        answer = operator.ask(method, f"/v1/sandboxes/{theirs}{path}", body)
        assert (answer.status, answer.error) == (404, "sandbox not found"), (method, path)
    run = {"sandbox": theirs, "language": "python", "timeout": None, "stream": False}
    assert operator.call(calls.RUN, run, b"print(secret)").status == 404
    for kind, header in (
        (calls.FORK, {"sandbox": theirs, "count": 1, "reseed": True}),
        (calls.READ, {"sandbox": theirs, "path": "/etc/hostname", "offset": 0, "length": None}),
        (calls.TERMINAL_LIST, {"sandbox": theirs}),
        (calls.REPLAY, {"sandbox": theirs}),
    ):
        assert operator.call(kind, header).status == 404, kind
    assert user.stdout(theirs, "print(secret)") == "1"


def test_an_operator_has_sandboxes_of_its_own_and_the_metrics(operator: Client) -> None:
    mine = operator.create()
    assert operator.stdout(mine, "print(6 * 7)") == "42"
    assert operator.ask("GET", "/metrics").status == 200
    assert operator.ask("GET", "/v1/whoami").json["scope"] == "operator"
    operator.remove(mine)


def test_a_key_that_is_none_of_an_operator_cannot_pass_for_one(user: Client, client: Client) -> None:
    theirs = client.create()
    assert user.call(calls.INFO, {"sandbox": theirs, "owner": None}).status == 404
    assert user.call(calls.CLOSE, {"sandbox": theirs, "owner": None, "wait": True}).status == 200
    assert client.stdout(theirs, "print(1)") == "1"
    assert theirs not in str(user.call(calls.SANDBOXES, {"owner": None}).body)


def test_the_command_line_of_an_operator_shows_keys_and_ends_what_it_lists(
    shared_server: Server, operator_key: str, user: Client
) -> None:
    theirs = user.create()
    shown = ramet("ps", url=shared_server.url, RAMET_API_KEY=operator_key).stdout
    assert shown.splitlines()[0].split()[0] == "KEY"
    assert any(line.split()[0] == "a-user" for line in shown.splitlines())
    rows = json.loads(ramet("ps", "--json", url=shared_server.url, RAMET_API_KEY=operator_key).stdout)
    assert {row["id"]: row["key"] for row in rows}[theirs] == "a-user"
    assert ramet("rm", theirs, url=shared_server.url, RAMET_API_KEY=operator_key).returncode == 0
    assert user.execute(theirs, "1").status == 410


def test_an_operator_is_told_why_a_sandbox_that_it_sees_is_not_there_for_it(
    shared_server: Server, operator_key: str, operator: Client, user: Client
) -> None:
    theirs = user.create()
    hint = "belongs to the key 'a-user'; an operator's key can only list, inspect and end it"
    for command in (("exec", "-c", "1", theirs), ("logs", theirs), ("cp", f"{theirs}:x", ".")):
        done = ramet(*command, url=shared_server.url, RAMET_API_KEY=operator_key)
        assert (done.returncode != 0, hint in done.stderr) == (True, True), done.stderr
    assert hint in operator.execute(theirs, "1").json["hint"]
    stranger = "sbx_" + "0" * 32
    assert "key" not in str(operator.execute(stranger, "1").json["hint"])
    assert "key" not in str(user.execute(operator.create(), "1").json["hint"])


def test_an_operator_lists_snapshots_and_templates_of_its_own_only(operator: Client, user: Client) -> None:
    theirs = user.ask("POST", f"/v1/sandboxes/{user.create()}/snapshots", {}).json["id"]
    own_sandbox = operator.create()
    own = operator.ask("POST", f"/v1/sandboxes/{own_sandbox}/snapshots", {}).json["id"]
    header: Any = operator.call(calls.SANDBOXES, {}).frames[0].header
    assert own in header["snapshots"]
    assert theirs not in header["snapshots"]
    assert isinstance(header["templates"], list)
    operator.ask("DELETE", f"/v1/snapshots/{own}")
    operator.remove(own_sandbox)
