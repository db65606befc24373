"""Keys: each sees what is its own, and has what its limits allow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from ramet.protocol import calls
from tests.server.running import Server
from tests.server.talking import Client


@pytest.fixture(scope="module")
def keys(shared_server: Server) -> dict[str, str]:
    create = shared_server.create_key
    return {
        "one": create("one"),
        "two": create("two"),
        "small": create("small", "--sandboxes", "2", "--cells", "1", "--memory-mib", "1000"),
        "metrics": create("prometheus", "--metrics"),
    }


@pytest.fixture
def clients(shared_server: Server, keys: dict[str, str]) -> Iterator[dict[str, Client]]:
    talkers = {name: Client(shared_server.port, key) for name, key in keys.items()}
    yield talkers
    for name, talker in talkers.items():
        if name != "metrics":
            for row in talker.ask("GET", "/v1/sandboxes").json["sandboxes"]:
                talker.remove(row["id"])
        talker.close()


def test_a_key_says_who_it_is(clients: dict[str, Client]) -> None:
    answer = clients["small"].ask("GET", "/v1/whoami").json
    assert answer["key"] == "small"
    assert answer["owner"].startswith("key_")
    assert (answer["limits"]["sandboxes"], answer["limits"]["concurrent_cells"]) == (2, 1)


@pytest.mark.parametrize("path", ["/v1/whoami", "/v1/sandboxes", "/v1/sandboxes/sbx_0", "/no/such/path", "/metrics"])
@pytest.mark.usefixtures("keys")
def test_a_wrong_key_learns_nothing(client: Client, path: str) -> None:
    answer = client.ask("GET", path, headers={"Authorization": "Bearer rmt_wrong"})
    assert (answer.status, answer.error) == (401, "invalid api key")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.usefixtures("keys")
def test_a_wrong_key_is_refused_before_its_body_is_looked_at(client: Client) -> None:
    answer = client.ask("POST", "/v1/call", b"nonsense", {"Authorization": "Bearer rmt_wrong"})
    assert answer.status == 401
    response = client.send(
        "POST", "/v1/call", iter([b"x"]), {"Authorization": "Bearer rmt_wrong", "Content-Length": str(1 << 30)}
    )
    assert response.status == 401
    response.read()


def test_health_and_description_need_no_key(client: Client) -> None:
    for path in ("/v1/healthz", "/v1/livez", "/v1/readyz", "/v1/openapi.json"):
        assert client.ask("GET", path, headers={"Authorization": "Bearer rmt_wrong"}).status == 200


@pytest.mark.promise("wall-keys")
def test_what_is_anothers_is_not_there(clients: dict[str, Client], client: Client) -> None:
    sandbox_id = clients["one"].create()
    clients["one"].execute(sandbox_id, "secret = 1")
    for other in (clients["two"], client):
        assert sandbox_id not in str(other.ask("GET", "/v1/sandboxes").body)
        for method, path, body in (
            ("GET", "", None),
            ("POST", "/exec", {"code": "print(secret)"}),
            ("POST", "/fork", {"n": 1}),
            ("POST", "/extend", {"timeout_seconds": 1}),
            ("POST", "/interrupt", None),
            ("GET", "/replay", None),
        ):
            answer = other.ask(method, f"/v1/sandboxes/{sandbox_id}{path}", body)
            assert (answer.status, answer.error) == (404, "sandbox not found"), (method, path)
        assert other.call(calls.INFO, {"sandbox": sandbox_id}).status == 404
        assert other.ask("DELETE", f"/v1/sandboxes/{sandbox_id}").status == 204
    assert clients["one"].stdout(sandbox_id, "print(secret)") == "1"


def test_an_ended_sandbox_of_another_is_not_told_of(clients: dict[str, Client]) -> None:
    sandbox_id = clients["one"].create()
    clients["one"].remove(sandbox_id)
    assert clients["one"].execute(sandbox_id, "1").status == 410
    assert clients["two"].execute(sandbox_id, "1").status == 404


def test_sandboxes_are_limited(clients: dict[str, Client]) -> None:
    small = clients["small"]
    first = small.create(memory_mib=100)
    small.create(memory_mib=100)
    for answer in (
        small.ask("POST", "/v1/sandboxes", {"memory_mib": 100}),
        small.ask("POST", f"/v1/sandboxes/{first}/fork", {"n": 1}),
    ):
        assert (answer.status, answer.json["code"]) == (429, "limit_reached")
        assert int(answer.headers["retry-after"]) >= 1
    for answer in (
        small.call(calls.CREATE, {"memory_mib": 100}),
        small.call(calls.FORK, {"sandbox": first, "count": 1, "reseed": True}),
    ):
        assert (answer.status, answer.frames[0].header["code"]) == (429, "limit_reached")
        assert int(answer.headers["retry-after"]) >= 1
    small.remove(first)
    small.create(memory_mib=100)


def test_memory_is_limited(clients: dict[str, Client]) -> None:
    small = clients["small"]
    small.create(memory_mib=600)
    answer = small.ask("POST", "/v1/sandboxes", {"memory_mib": 600})
    assert (answer.status, answer.json["details"]["limit"]) == (429, "memory_mib")
    small.create(memory_mib=300)


def test_cells_at_once_are_limited(clients: dict[str, Client], keys: dict[str, str]) -> None:
    small = clients["small"]
    sandbox_id = small.create(memory_mib=100)
    busy = Client(small.port, keys["small"])
    response = busy.send("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": "print(1)\nwhile True: pass"})
    response.readline()
    answer = small.execute(sandbox_id, "1")
    assert (answer.status, answer.json["details"]["limit"]) == (429, "concurrent_cells")
    header = {"sandbox": sandbox_id, "language": "python", "timeout": None, "stream": False}
    assert small.call(calls.RUN, header, b"1").status == 429
    small.ask("POST", f"/v1/sandboxes/{sandbox_id}/interrupt")
    response.read()
    assert small.execute(sandbox_id, "1").status == 200
    busy.close()


def test_a_key_for_metrics_opens_nothing_else(clients: dict[str, Client]) -> None:
    assert clients["metrics"].ask("GET", "/metrics").status == 200
    for method, path in (("POST", "/v1/sandboxes"), ("GET", "/v1/sandboxes"), ("POST", "/v1/call")):
        assert clients["metrics"].ask(method, path).status == 403
    assert clients["one"].ask("GET", "/metrics").status == 403


def test_a_revoked_key_is_out_at_once(shared_server: Server) -> None:
    talker = Client(shared_server.port, shared_server.create_key("short-lived"))
    assert talker.ask("GET", "/v1/whoami").status == 200
    command = [sys.executable, "-m", "ramet.cli.main", "keys", "revoke", "short-lived"]
    subprocess.run([*command, "--state", str(shared_server.state)], check=True, capture_output=True)
    assert talker.ask("GET", "/v1/whoami").status == 401
    talker.close()


def test_a_page_in_a_browser_is_not_a_program_of_this_machine(client: Client) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        answer = client.ask("POST", "/v1/sandboxes", {}, headers)
        assert answer.status == 403, headers
    assert client.ask("GET", "/v1/whoami", headers={"Origin": f"http://127.0.0.1:{client.port}"}).status == 200
