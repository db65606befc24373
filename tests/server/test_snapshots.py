"""Snapshots over HTTP: taken, put back, thawed, saved, dropped; each owner has their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.asking import Caller
from tests.server.running import Server

UNKNOWN_SNAPSHOT = "snp_" + "0" * 32
UNKNOWN_SANDBOX = "sbx_" + "0" * 32


@pytest.fixture
def caller(shared_server: Server) -> Caller:
    """Without a key, as on loopback."""
    return Caller(shared_server.url)


@pytest.fixture
def snapshot_id(caller: Caller, sandbox_id: str) -> Iterator[str]:
    """Of a sandbox in which ``x`` is 1."""
    caller.run(sandbox_id, "x = 1")
    answer = caller.ask("POST", f"/v1/sandboxes/{sandbox_id}/snapshots")
    assert answer.status == 201
    yield answer.json["id"]
    assert caller.ask("DELETE", f"/v1/snapshots/{answer.json['id']}").status == 204


def ids(caller: Caller) -> list[str]:
    answer = caller.ask("GET", "/v1/snapshots")
    assert answer.status == 200
    return [row["id"] for row in answer.json["snapshots"]]


def test_a_sandbox_is_put_back_to_what_it_was(caller: Caller, sandbox_id: str, snapshot_id: str) -> None:
    caller.run(sandbox_id, "x = 2")
    assert caller.ask("POST", f"/v1/sandboxes/{sandbox_id}/restore", {"snapshot": snapshot_id}).status == 204
    assert caller.run(sandbox_id, "x")["value"] == "1"


def test_a_new_sandbox_is_made_from_a_snapshot(caller: Caller, sandbox_id: str, snapshot_id: str) -> None:
    made = caller.sandbox(snapshot=snapshot_id)
    assert made != sandbox_id
    assert caller.run(made, "x + 1")["value"] == "2"
    caller.ask("DELETE", f"/v1/sandboxes/{made}")


def test_snapshots_are_listed_until_they_are_dropped(caller: Caller, snapshot_id: str) -> None:
    assert snapshot_id in ids(caller)
    for _ in range(2):
        assert caller.ask("DELETE", f"/v1/snapshots/{snapshot_id}").status == 204
    assert snapshot_id not in ids(caller)


def test_a_saved_snapshot_is_a_template(caller: Caller, snapshot_id: str) -> None:
    assert caller.ask("POST", f"/v1/snapshots/{snapshot_id}/save", {"name": "with-x"}).status == 204
    assert caller.ask("DELETE", f"/v1/snapshots/{snapshot_id}").status == 204
    made = caller.sandbox(template="with-x")
    assert caller.run(made, "x")["value"] == "1"
    caller.ask("DELETE", f"/v1/sandboxes/{made}")


def test_snapshots_of_others_do_not_exist(shared_server: Server, caller: Caller, snapshot_id: str) -> None:
    other = Caller(shared_server.url, shared_server.create_key("snapshots-of-another"))
    assert ids(other) == []
    assert other.ask("POST", f"/v1/snapshots/{snapshot_id}/save", {"name": "mine"}).status == 404
    mine = other.sandbox()
    answer = other.ask("POST", f"/v1/sandboxes/{mine}/restore", {"snapshot": snapshot_id})
    assert (answer.status, answer.json["error"]) == (404, "snapshot not found")
    assert other.ask("POST", "/v1/sandboxes", {"snapshot": snapshot_id}).status == 404
    assert other.ask("DELETE", f"/v1/snapshots/{snapshot_id}").status == 204
    assert snapshot_id in ids(caller)
    other.ask("DELETE", f"/v1/sandboxes/{mine}")


def test_what_is_not_there_is_said_by_its_name(caller: Caller, sandbox_id: str, snapshot_id: str) -> None:
    answer = caller.ask("POST", f"/v1/sandboxes/{sandbox_id}/restore", {"snapshot": UNKNOWN_SNAPSHOT})
    assert (answer.status, answer.json["error"]) == (404, "snapshot not found")
    answer = caller.ask("POST", f"/v1/sandboxes/{UNKNOWN_SANDBOX}/restore", {"snapshot": snapshot_id})
    assert (answer.status, answer.json["error"]) == (404, "sandbox not found")
    answer = caller.ask("POST", f"/v1/sandboxes/{UNKNOWN_SANDBOX}/snapshots")
    assert (answer.status, answer.json["error"]) == (404, "sandbox not found")


@pytest.mark.parametrize("body", [b"{}", b'{"name":""}', b'{"name":"a b"}', b'{"name":"default"}', b'{"name":7}', b"x"])
def test_a_name_of_a_template_is_checked(caller: Caller, snapshot_id: str, body: bytes) -> None:
    answer = caller.ask("POST", f"/v1/snapshots/{snapshot_id}/save", body)
    assert answer.status == 400


def test_a_diff_tells_of_files_and_names(caller: Caller, sandbox_id: str) -> None:
    caller.run(sandbox_id, "x = 1")
    (child,) = caller.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 1}).json["children"]
    caller.run(child, "x = 2; open('a.txt', 'w').write('new'); open('/tmp/b', 'w').write('b')")
    target = f"/v1/sandboxes/{sandbox_id}/diff/{child}"
    answer = caller.ask("GET", target)
    assert answer.status == 200
    changes = {change["path"]: change["change"] for change in answer.json["files"]}
    assert changes["/root/a.txt"] == "added"
    assert [(change["name"], change["change"]) for change in answer.json["names"]] == [("x", "changed")]
    some = caller.ask("GET", f"{target}?path=/tmp&path=nothing").json["files"]
    assert [change["path"] for change in some] == ["/tmp/b"]
    assert caller.ask("GET", f"{target}?path=").status == 400
    assert caller.ask("GET", f"{target}?other=1").status == 400
    caller.ask("DELETE", f"/v1/sandboxes/{child}")
    assert caller.ask("GET", target).status == 410
    assert caller.ask("GET", f"/v1/sandboxes/{sandbox_id}/diff/{UNKNOWN_SANDBOX}").status == 404


def test_a_diff_with_a_snapshot_tells_what_has_changed_since(caller: Caller, sandbox_id: str, snapshot_id: str) -> None:
    caller.run(sandbox_id, "x = 2; y = 3; _ = open('/root/new', 'w').write('n')")
    answer = caller.ask("GET", f"/v1/sandboxes/{sandbox_id}/diff/{snapshot_id}?path=/root")
    assert answer.status == 200
    assert [(change["path"], change["change"]) for change in answer.json["files"]] == [("/root/new", "added")]
    assert {change["name"]: change["change"] for change in answer.json["names"]} == {"x": "changed", "y": "added"}
    assert caller.ask("GET", f"/v1/sandboxes/{sandbox_id}/diff/{UNKNOWN_SNAPSHOT}").status == 404


def test_a_snapshot_goes_out_as_a_file_and_comes_back(caller: Caller, snapshot_id: str) -> None:
    out = caller.ask("GET", f"/v1/snapshots/{snapshot_id}/export")
    assert (out.status, out.headers["content-type"]) == (200, "application/octet-stream")
    assert out.body.startswith(b"ramet image")
    back = caller.ask("POST", "/v1/snapshots/import?memory_mib=512", out.body)
    assert back.status == 201, back.body
    made = caller.sandbox(snapshot=back.json["id"])
    assert caller.run(made, "x + 1")["value"] == "2"
    assert caller.ask("GET", f"/v1/sandboxes/{made}").json["limits"]["memory_bytes"] == 512 << 20
    caller.ask("DELETE", f"/v1/sandboxes/{made}")
    assert caller.ask("DELETE", f"/v1/snapshots/{back.json['id']}").status == 204


def test_what_cannot_go_out_or_come_in_is_told(caller: Caller) -> None:
    assert caller.ask("GET", f"/v1/snapshots/{UNKNOWN_SNAPSHOT}/export").status == 404
    for body in (b"", b"not a file of a snapshot", b"x" * 3_000_000):
        answer = caller.ask("POST", "/v1/snapshots/import", body)
        assert answer.status in (400, 409, 503), answer.body
    assert caller.ask("POST", "/v1/snapshots/import?memory_mib=1", b"x").status == 400
    assert caller.ask("POST", "/v1/snapshots/import?owner=me", b"x").status == 400
    assert ids(caller) == []
