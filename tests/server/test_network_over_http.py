"""What sandboxes may reach is asked for over HTTP, bounded by the key and by the server, and told again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from ramet.protocol import calls
from ramet.protocol.network.requests import read_network
from ramet.protocol.requests.sandboxes import SandboxOptions
from tests.network.routes import http_serving
from tests.server.running import Server, running_server
from tests.server.talking import Answer, Client

SECRET = "hush-0xC0FFEE-hush"
WITH_SECRET = {"egress": ["api.example"], "secrets": {"KEY": {"value": SECRET, "hosts": ["api.example"]}}}


def network(client: Client, sandbox_id: str) -> dict[str, Any]:
    answer = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/network")
    assert answer.status == 200, answer
    told: dict[str, Any] = answer.json
    return told


def change(client: Client, sandbox_id: str, **rules: object) -> Answer:
    return client.ask("POST", f"/v1/sandboxes/{sandbox_id}/network", rules)


# Asking for it


@pytest.mark.parametrize(
    ("egress", "rules", "denied"),
    [
        (True, ["open"], []),
        ("open", ["open"], []),
        ([], [], []),
        (["API.example", "*.example:443"], ["api.example", "*.example:443"], []),
        ({"rules": ["api.example"], "deny": ["b.example"]}, ["api.example"], ["b.example"]),
        ({"open": True, "deny": ["b.example"]}, ["open"], ["b.example"]),
    ],
)
def test_egress_says_what_a_sandbox_may_reach(
    client: Client, egress: object, rules: list[str], denied: list[str]
) -> None:
    told = network(client, client.create(egress=egress))
    assert (told["rules"], told["denied"]) == (rules, denied)
    assert (told["attempts"], told["dropped"], told["connections"]) == ([], 0, 256)


def test_limits_are_told_again(client: Client) -> None:
    limits = {"connections": 5, "bytes_per_second": 1000, "total_bytes": 5000}
    told = network(client, client.create(egress={"rules": ["api.example"], **limits}))
    assert {name: told[name] for name in limits} == limits


@pytest.mark.parametrize("egress", [False, None])
def test_without_egress_there_is_no_network(client: Client, egress: object) -> None:
    sandbox_id = client.create(egress=egress)
    for answer in (
        client.ask("GET", f"/v1/sandboxes/{sandbox_id}/network"),
        change(client, sandbox_id, allow=["a.example"]),
    ):
        assert (answer.status, answer.json["details"]["argument"]) == (400, "network")
    assert client.stdout(sandbox_id, "import os; print([n for n in os.environ if 'proxy' in n.lower()])") == "[]"


def test_rules_change_while_it_runs(client: Client) -> None:
    sandbox_id = client.create(egress=["api.example"])
    changed = change(client, sandbox_id, allow=["Data.example"], deny=["api.example"])
    assert changed.status == 200
    assert (changed.json["rules"], changed.json["denied"]) == (["data.example"], ["api.example"])
    told = network(client, sandbox_id)
    assert (told["rules"], told["denied"]) == (["data.example"], ["api.example"])


@pytest.mark.parametrize(
    ("body", "argument"),
    [
        ({}, "allow"),
        ({"allow": []}, "allow"),
        ({"allow": "api.example"}, "allow"),
        ({"allow": ["*"]}, "allow"),
        ({"deny": ["http://a.example"]}, "deny"),
        ({"deny": [5]}, "deny"),
        ({"allow": ["a.example"], "colour": 1}, "colour"),
    ],
)
def test_a_change_that_means_nothing_is_refused(client: Client, body: dict[str, object], argument: str) -> None:
    answer = change(client, client.create(egress=[]), **body)
    assert (answer.status, answer.json["details"]["argument"]) == (400, argument)


def test_frames_ask_and_change_as_json_does(client: Client) -> None:
    request = SandboxOptions(network=read_network("network", ["api.example"])).header()
    (created,) = client.call(calls.CREATE, request).frames
    sandbox_id = created.header["id"]
    header = {"sandbox": sandbox_id, "allow": ["b.example"], "deny": []}
    assert client.call(calls.NETWORK_CHANGE, header).frames[0].kind == calls.ANSWER
    (told,) = client.call(calls.NETWORK, {"sandbox": sandbox_id}).frames
    spec = told.header["network"]
    assert isinstance(spec, dict)
    assert spec["allow"] == ["api.example", "b.example"]
    refused = client.call(calls.NETWORK_CHANGE, {**header, "allow": ["10.0.0.1"]})
    assert (refused.status, refused.frames[0].header["code"]) == (403, "not_permitted")


def test_a_sandbox_from_a_snapshot_has_what_its_own_request_says(client: Client) -> None:
    first = client.create(egress=["api.example"])
    snapshot = client.ask("POST", f"/v1/sandboxes/{first}/snapshots").json["id"]
    second = client.create(snapshot=snapshot, egress=["b.example"])
    assert network(client, second)["rules"] == ["b.example"]
    third = client.create(snapshot=snapshot)
    assert client.ask("GET", f"/v1/sandboxes/{third}/network").status == 400
    assert client.ask("DELETE", f"/v1/snapshots/{snapshot}").status == 204


def test_resuming_asks_anew(client: Client) -> None:
    first = client.create(egress=["api.example"], persistent=True)
    client.remove(first)
    answer = client.ask("POST", f"/v1/spaces/{first}/resume", {"egress": ["b.example"], "persistent": False})
    assert answer.status == 201, answer
    assert network(client, answer.json["id"])["rules"] == ["b.example"]
    assert client.ask("DELETE", f"/v1/spaces/{first}").status == 204


# Bounds


def test_a_caller_without_a_key_may_have_what_is_public(client: Client) -> None:
    assert client.ask("GET", "/v1/whoami").json["network"] == ["open"]
    refused = client.ask("POST", "/v1/sandboxes", {"egress": ["169.254.169.254"]})
    assert (refused.status, refused.json["code"]) == (403, "not_permitted")
    assert "169.254.169.254" in refused.json["error"]
    pinned = {"rules": ["api.example"], "addresses": {"api.example": "127.0.0.1"}}
    assert client.ask("POST", "/v1/sandboxes", {"egress": pinned}).status == 403


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has a bound of its own."""
    folder = tmp_path_factory.mktemp("bounded")
    bound = [f"--network={rule}" for rule in ("*.example", "api.example:*", "127.0.0.1:*")]
    with running_server(folder, "--require-key", *bound) as server:
        yield server


WithKey = Callable[..., Client]


@pytest.fixture
def with_key(keyed: Server) -> Iterator[WithKey]:
    """Makes keys that may have some rules, and callers that have them."""
    made: list[Client] = []

    def make(name: str, *rules: str) -> Client:
        made.append(Client(keyed.port, keyed.create_key(name, *(f"--network={rule}" for rule in rules))))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.mark.deep("restarts")
def test_a_key_may_have_nothing_unless_it_says_so(with_key: WithKey) -> None:
    client = with_key("plain")
    assert client.ask("GET", "/v1/whoami").json["network"] == []
    for egress in (True, ["api.example"], {"open": True}):
        refused = client.ask("POST", "/v1/sandboxes", {"egress": egress})
        assert (refused.status, refused.json["code"]) == (403, "not_permitted")
    sandbox_id = client.create(egress=[])
    assert change(client, sandbox_id, allow=["api.example"]).status == 403
    assert change(client, sandbox_id, deny=["api.example"]).status == 200


@pytest.mark.deep("restarts")
def test_nobody_has_more_than_the_key_and_the_server_allow(with_key: WithKey) -> None:
    client = with_key("some", "api.example", "api.other", "10.0.0.1")
    assert client.ask("GET", "/v1/whoami").json["network"] == ["api.example"]
    sandbox_id = client.create(egress=["api.example:443"])
    for rule in ("api.other", "b.example", "10.0.0.1", "api.example:22"):
        assert client.ask("POST", "/v1/sandboxes", {"egress": [rule]}).status == 403
        refused = change(client, sandbox_id, allow=[rule])
        assert (refused.status, refused.json["code"]) == (403, "not_permitted")
        assert rule in refused.json["error"]
    assert network(client, sandbox_id)["rules"] == ["api.example:443"]
    wide = with_key("wide", "open")
    assert wide.ask("GET", "/v1/whoami").json["network"] == ["*.example", "api.example:*"]
    assert wide.ask("POST", "/v1/sandboxes", {"egress": True}).status == 403


def test_a_resumed_or_thawed_sandbox_is_bounded_too(with_key: WithKey) -> None:
    client = with_key("again", "api.example")
    first = client.create(egress=["api.example"], persistent=True)
    snapshot = client.ask("POST", f"/v1/sandboxes/{first}/snapshots").json["id"]
    assert client.ask("POST", "/v1/sandboxes", {"snapshot": snapshot, "egress": ["b.example"]}).status == 403
    client.remove(first)
    assert client.ask("POST", f"/v1/spaces/{first}/resume", {"egress": ["b.example"]}).status == 403
    assert client.ask("POST", f"/v1/spaces/{first}/resume", {"egress": ["api.example"]}).status == 201


@pytest.mark.deep("restarts")
def test_keys_are_listed_with_what_they_may_reach(keyed: Server) -> None:
    keyed.create_key("listed", "--network=api.example", "--network=open")
    command = [sys.executable, "-m", "ramet.cli.main", "keys", "list", "--state", str(keyed.state)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "open api.example" in next(line for line in shown.splitlines() if " listed " in line)
    facts = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)
    assert next(row for row in facts if row["name"] == "listed")["network"] == ["open", "api.example"]


@pytest.mark.parametrize("command", [["keys", "create", "--name", "x"], ["serve", "--port", "0"]])
@pytest.mark.parametrize("rules", [["*"], ["https://a.example/"], ["none", "open"]])
def test_a_bound_that_means_nothing_is_told_at_once(tmp_path: Path, command: list[str], rules: list[str]) -> None:
    options = [f"--network={rule}" for rule in rules]
    whole = [sys.executable, "-m", "ramet.cli.main", *command, *options, "--state", str(tmp_path / "state")]
    ended = subprocess.run(whole, capture_output=True, text=True, timeout=60)
    assert ended.returncode in (1, 2)
    assert "network" in ended.stderr
    assert "Traceback" not in ended.stderr


# Reaching something


# By hand: libraries go to addresses of their own machine directly.
FETCH = """
import http.client
connection = http.client.HTTPConnection("127.0.0.1", 3128)
connection.request("GET", "http://127.0.0.1:PORT/bytes/5")
print(connection.getresponse().status)
"""


def test_what_a_sandbox_tried_is_told(keyed: Server, with_key: WithKey) -> None:
    client = with_key("fetching", "127.0.0.1:*")
    with http_serving() as outside:
        rule = f"127.0.0.1:{outside.port}"
        sandbox_id = client.create(egress=[rule])
        code = FETCH.replace("PORT", str(outside.port))
        assert client.stdout(sandbox_id, code) == "200"
        assert change(client, sandbox_id, deny=[rule]).status == 200
        assert client.stdout(sandbox_id, code) == "403"
        attempts = network(client, sandbox_id)["attempts"]
    assert [(one["host"], one["port"], one["allowed"], one["rule"]) for one in attempts] == [
        ("127.0.0.1", outside.port, True, rule),
        ("127.0.0.1", outside.port, False, rule),
    ]
    assert attempts[0]["received_bytes"] > 5
    assert rule not in keyed.log.read_text()


# Secrets


ASK_WITH_KEY = """
import os, urllib.request
request = urllib.request.Request("https://api.example:PORT/echo")
request.add_header("Authorization", "Bearer " + os.environ["KEY"])
print(urllib.request.urlopen(request).read().decode())
"""


def test_a_secret_gets_to_its_host_and_no_further(with_key: WithKey) -> None:
    client = with_key("secretive", "api.example:*", "127.0.0.1:*")
    authority = trustme.CA()
    with http_serving(authority) as outside:
        rule = f"api.example:{outside.port}"
        egress = {
            "rules": [rule],
            "addresses": {"api.example": "127.0.0.1"},
            "ca_pem": authority.cert_pem.bytes().decode(),
        }
        sandbox_id = client.create(egress=egress, secrets={"KEY": {"value": SECRET, "hosts": [rule]}})
        answered = client.execute(sandbox_id, ASK_WITH_KEY.replace("PORT", str(outside.port)))
        assert '"type":"exit","data":0' in answered.body.decode(), answered
        assert outside.requests[-1].header("Authorization") == f"Bearer {SECRET}"
        told = network(client, sandbox_id)
    assert SECRET.encode() not in answered.body
    assert SECRET not in json.dumps(told)
    assert told["addresses"] == {"api.example": "127.0.0.1"}
    assert told["attempts"][0]["address"] == "127.0.0.1"


def test_the_value_of_a_secret_is_nowhere_but_in_the_engine(tmp_path: Path) -> None:
    with running_server(tmp_path, "--log-format", "json") as server:
        client = Client(server.port)
        repeated = {"Idempotency-Key": "once"}
        first = client.ask("POST", "/v1/sandboxes", WITH_SECRET, repeated)
        assert first.status == 201, first
        assert client.ask("POST", "/v1/sandboxes", WITH_SECRET, repeated).json == first.json
        sandbox_id = first.json["id"]
        assert SECRET not in client.stdout(sandbox_id, "import os; print(os.environ['KEY'], dict(os.environ))")
        (child,) = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"inherit_secrets": True}).json["children"]
        answers = [
            client.ask("POST", "/v1/sandboxes", {**WITH_SECRET, "egress": ["b.example"]}),
            client.ask("POST", "/v1/sandboxes", {**WITH_SECRET, "egress": ["10.0.0.1"]}),
            client.ask("POST", "/v1/sandboxes", {**WITH_SECRET, "colour": "red"}),
            client.ask("POST", "/v1/sandboxes", {**WITH_SECRET, "snapshot": "nothing"}),
            client.ask("POST", "/v1/sandboxes", json.dumps(WITH_SECRET).encode()[:-5]),
            client.ask("GET", f"/v1/sandboxes/{sandbox_id}"),
            client.ask("GET", f"/v1/sandboxes/{child}/network"),
            client.ask("GET", "/v1/sandboxes"),
            client.ask("GET", "/metrics"),
        ]
        for answer in answers:
            assert SECRET.encode() not in answer.body
        client.close()
        kept = [file for file in server.state.iterdir() if file.is_file()]
        assert {"ramet.db", "ramet.secret"} <= {file.name for file in kept}
        for file in (*kept, server.log):
            assert SECRET.encode() not in file.read_bytes(), file


def test_the_same_request_with_another_secret_is_another_request(client: Client) -> None:
    repeated = {"Idempotency-Key": "secrets-differ"}
    assert client.ask("POST", "/v1/sandboxes", WITH_SECRET, repeated).status == 201
    other = {"egress": ["api.example"], "secrets": {"KEY": {"value": "another one", "hosts": ["api.example"]}}}
    assert client.ask("POST", "/v1/sandboxes", other, repeated).status == 409
