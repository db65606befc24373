"""Sandboxes made, looked at, forked, merged, kept and ended with plain HTTP."""

from __future__ import annotations

import re
import time

import pytest

from tests.server.talking import Client


def test_create_tells_the_id_and_nothing_that_moves_the_client_elsewhere(client: Client) -> None:
    answer = client.ask("POST", "/v1/sandboxes", {})
    assert answer.status == 201
    assert set(answer.json) == {"id", "state"}
    assert re.fullmatch("sbx_[0-9a-f]{32}", answer.json["id"])
    assert answer.json["state"] == "ready"


def test_no_body_is_an_empty_one(client: Client) -> None:
    assert client.ask("POST", "/v1/sandboxes").status == 201


def test_a_region_in_front_of_the_path_means_nothing(client: Client) -> None:
    assert client.ask("GET", "/r/eu-west-1/v1/whoami").json["owner"] == "local"
    assert client.ask("GET", "/r/eu/v1/healthz").body == b"ok"


def test_the_fields_of_the_published_client(client: Client) -> None:
    fields = {"template": "default", "ram_mib": 512, "rootfs_gb": 1, "egress": False, "persistent": False}
    sandbox_id = client.create(**fields, timeout_seconds=600, idle_timeout_seconds=60)
    limits = client.ask("GET", f"/v1/sandboxes/{sandbox_id}").json["limits"]
    assert (limits["memory_bytes"], limits["disk_bytes"]) == (512 << 20, 1 << 30)


def test_the_fields_that_are_offered_are_those_that_are_taken(client: Client) -> None:
    answer = client.ask("POST", "/v1/sandboxes", {"memory": 512})
    assert (answer.status, answer.json["details"]["argument"]) == (400, "memory")
    offered = set(re.findall(r"\w+", answer.json["hint"]))
    assert {"memory_mib", "snapshot", "egress"} <= offered
    assert not {"python", "mounts"} & offered
    for refused, value in (("python", "/usr/bin/python3"), ("mounts", [{"source": "/", "target": "/x"}])):
        answer = client.ask("POST", "/v1/sandboxes", {refused: value})
        assert answer.status == 400
        assert refused in answer.error


def test_our_own_fields(client: Client) -> None:
    sandbox_id = client.create(memory_mib=300, disk_mib=100, pids=50, cpus=1, env={"COLOUR": "red"}, cwd="/tmp")
    limits = client.ask("GET", f"/v1/sandboxes/{sandbox_id}").json["limits"]
    assert (limits["pids"], limits["cpus"]) == (50, 1.0)
    assert client.stdout(sandbox_id, "import os; print(os.environ['COLOUR'], os.getcwd())") == "red /tmp"


@pytest.mark.parametrize(
    ("body", "argument"),
    [
        ({"egress": "no"}, "egress"),
        ({"egress": 1}, "egress"),
        ({"egress": ["https://api.example/"]}, "egress"),
        ({"egress": {"rules": ["api.example"], "colour": "red"}}, "egress"),
        ({"network": ["api.example"]}, "network"),
        ({"secrets": {"KEY": {"value": "hush-hush", "hosts": ["api.example"]}}}, "secrets"),
        ({"egress": ["b.example"], "secrets": {"KEY": {"value": "hush-hush", "hosts": ["api.example"]}}}, "secrets"),
        ({"egress": True, "secrets": {"KEY": {"value": "hush-hush", "hosts": []}}}, "secrets"),
        ({"egress": True, "secrets": {"KEY": "hush-hush"}}, "secrets"),
        ({"egress": True, "secrets": {"A-B": {"value": "hush-hush", "hosts": ["api.example"]}}}, "secrets"),
        ({"colour": "red"}, "colour"),
        ({"memory_mib": 1}, "memory_mib"),
        ({"memory_mib": 10**9}, "memory_mib"),
        ({"ram_mib": 10**9}, "memory_mib"),
        ({"ram_mib": 512, "memory_mib": 512}, "ram_mib"),
        ({"ram_mib": "512"}, "ram_mib"),
        ({"ram_mib": 1e300}, "ram_mib"),
        ({"rootfs_gb": True}, "rootfs_gb"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"idle_timeout_seconds": "1"}, "idle_timeout_seconds"),
        ({"template": "nobody-has-this"}, "template"),
        ({"template": "../x"}, "template"),
        ({"template": 3}, "template"),
        ({"python": "/bin/sh"}, "python"),
        ({"mounts": [{"source": "/etc", "target": "/mnt", "writable": False}]}, "mounts"),
        ({"mounts": {}}, "mounts"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"cwd": "a\0b"}, "cwd"),
        ({"preload": "json"}, "preload"),
        ({"preload": ["not a name"], "template": "mine"}, "preload"),
        ({"snapshot": 3}, "snapshot"),
    ],
)
def test_a_mistake_is_told_by_its_field(client: Client, body: dict[str, object], argument: str) -> None:
    answer = client.ask("POST", "/v1/sandboxes", body)
    assert answer.status == 400, answer
    assert answer.json["details"]["argument"] == argument
    assert "hush-hush" not in answer.body.decode()


def test_sandboxes_are_listed_without_their_owner(client: Client) -> None:
    ids = {client.create() for _ in range(3)}
    rows = client.ask("GET", "/v1/sandboxes").json["sandboxes"]
    assert ids <= {row["id"] for row in rows}
    assert all("owner" not in row and row["state"] == "idle" for row in rows)


def test_a_sandbox_has_an_end_and_it_can_be_put_off(client: Client, sandbox_id: str) -> None:
    info = client.ask("GET", f"/v1/sandboxes/{sandbox_id}").json
    now_ms = time.time() * 1000
    assert 25 * 60_000 < info["expires_ms"] - now_ms < 31 * 60_000
    assert 4 * 60_000 < info["idle_expires_ms"] - now_ms < 6 * 60_000
    answer = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/extend", {"timeout_seconds": 7200})
    assert answer.json["expires_ms"] - now_ms > 115 * 60_000
    assert client.ask("POST", f"/v1/sandboxes/{sandbox_id}/extend", {"timeout_seconds": "x"}).status == 400
    assert client.ask("POST", f"/v1/sandboxes/{sandbox_id}/extend", {"seconds": 1}).status == 400


def test_an_end_that_came_is_told_with_its_cause(client: Client) -> None:
    sandbox_id = client.create(timeout_seconds=0.2)
    until = time.monotonic() + 60
    while (answer := client.ask("GET", f"/v1/sandboxes/{sandbox_id}")).status == 200:
        assert time.monotonic() < until
    assert (answer.status, answer.json["details"]["cause"]) == (410, "timeout")
    assert answer.json["code"] == "sandbox_closed"


def test_delete_is_the_same_for_what_is_not_there(client: Client, sandbox_id: str) -> None:
    for some_id in (sandbox_id, sandbox_id, "sbx_" + "0" * 32, "nonsense", "%F0%9F%98%80"):
        answer = client.ask("DELETE", f"/v1/sandboxes/{some_id}")
        assert (answer.status, answer.body) == (204, b"")


def test_forks_know_what_their_parent_knew(client: Client, sandbox_id: str) -> None:
    client.execute(sandbox_id, "x = 41")
    answer = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 3})
    assert answer.status == 201
    assert len(answer.json["children"]) == 3
    assert answer.json["info"]["pause_seconds"] > 0
    for child in answer.json["children"]:
        assert client.stdout(child, "x += 1; print(x)") == "42"
    assert client.stdout(sandbox_id, "print(x)") == "41"


def test_forks_draw_the_same_random_numbers_unless_they_are_reseeded(client: Client, sandbox_id: str) -> None:
    """As the children of Sandbox.fork do: a program that moves from the one to the other sees no difference."""
    client.execute(sandbox_id, "import random; _ = random.random()")
    draw = "print(random.random())"
    alike = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 2}).json["children"]
    assert len({client.stdout(child, draw) for child in alike}) == 1
    others = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 2, "reseed": True}).json["children"]
    assert len({client.stdout(child, draw) for child in others}) == 2


@pytest.mark.parametrize("body", [{"n": 0}, {"n": 257}, {"n": -1}, {"n": "2"}, {"n": 1.5}, {"n": 10**30}, {"m": 1}])
def test_forks_that_are_not_possible(client: Client, sandbox_id: str, body: dict[str, object]) -> None:
    assert client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", body).status == 400


def test_a_fork_with_the_same_key_is_the_same_fork(client: Client, sandbox_id: str) -> None:
    headers = {"Idempotency-Key": "k"}
    first, again = (client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 2}, headers) for _ in range(2))
    assert first.json["children"] == again.json["children"]
    assert client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 3}, headers).status == 409


def test_merge_gives_the_winners_state_the_parents_id(client: Client, sandbox_id: str) -> None:
    (child,) = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 1}).json["children"]
    client.execute(child, "won = 'yes'")
    assert client.ask("POST", f"/v1/sandboxes/{sandbox_id}/merge_into/{child}").status == 204
    assert client.stdout(sandbox_id, "print(won)") == "yes"
    gone = client.execute(child, "1")
    assert (gone.status, gone.json["details"]["cause"]) == (410, "merged")


def test_take_brings_names_and_files_or_lists_conflicts(client: Client, sandbox_id: str) -> None:
    client.execute(sandbox_id, "x = 1")
    child = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {}).json["children"][0]
    client.execute(child, "x = 2; _ = open('/root/f', 'w').write('theirs')")
    path = f"/v1/sandboxes/{sandbox_id}/take/{child}"
    answer = client.ask("POST", path, {"names": ["x"], "files": True})
    assert (answer.status, answer.json["names"]) == (200, ["x"])
    assert [change["path"] for change in answer.json["files"]] == ["/root/f"]
    client.execute(sandbox_id, "_ = open('/root/f', 'w').write('ours')")
    client.execute(child, "_ = open('/root/f', 'w').write('again')")
    refused = client.ask("POST", path, {"files": ["f"]})
    assert (refused.status, refused.json["code"], refused.json["details"]["files"]) == (
        409,
        "merge_conflict",
        ["/root/f"],
    )
    assert client.ask("POST", path, {"files": ["f"], "prefer": "theirs"}).status == 200
    assert client.ask("POST", path, {"names": ["nowhere"]}).status == 404
    assert client.ask("POST", path, {}).status == 400
    assert client.ask("POST", path, {"names": "x"}).status == 400
    assert client.ask("POST", f"/v1/sandboxes/{sandbox_id}/take/sbx_{'0' * 32}", {"names": ["x"]}).status == 404


def test_merges_that_are_not_possible(client: Client, sandbox_id: str) -> None:
    assert client.ask("POST", f"/v1/sandboxes/{sandbox_id}/merge_into/{sandbox_id}").status == 400
    answer = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/merge_into/sbx_{'0' * 32}")
    assert (answer.status, answer.error) == (404, "sandbox not found")


def test_a_persistent_sandbox_can_be_resumed(client: Client) -> None:
    created = client.ask("POST", "/v1/sandboxes", {"persistent": True}).json
    client.execute(created["id"], "kept = 7")
    client.remove(created["id"])
    resumed = client.ask("POST", f"/v1/spaces/{created['space_id']}/resume", {})
    assert resumed.status == 201
    assert resumed.json["id"] != created["id"]
    assert client.stdout(resumed.json["id"], "print(kept)") == "7"
    assert client.ask("DELETE", f"/v1/spaces/{created['space_id']}").status == 204
    assert client.ask("DELETE", "/v1/spaces/unknown").status == 204
    assert client.ask("POST", "/v1/spaces/unknown/resume", {}).status in (400, 404)


# Paths and methods


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/sandboxes/", "/v1//sandboxes", "/v1/sandboxes/a/b/c/d", "//", "/r/"]
)
def test_paths_that_are_not_there(client: Client, path: str) -> None:
    answer = client.ask("GET", path)
    assert (answer.status, answer.json["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/call", "POST"),
        ("PUT", "/v1/sandboxes", "GET, POST"),
        ("OPTIONS", "/v1/sandboxes", "GET, POST"),
        ("PATCH", "/v1/healthz", "GET"),
        ("HEAD", "/v1/sandboxes/sbx_0/replay", "GET"),
    ],
)
def test_methods_that_are_not_there(client: Client, method: str, path: str, allowed: str) -> None:
    answer = client.ask(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)


def test_head_is_get_without_the_body(client: Client) -> None:
    answer = client.ask("HEAD", "/v1/healthz")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "2")
