"""Snapshots on the disk of a server: there after a restart, each key's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.asking import Caller
from tests.server.running import running_server


def save(caller: Caller, name: str, code: str) -> None:
    sandbox_id = caller.sandbox()
    caller.run(sandbox_id, code)
    snapshot_id = caller.ask("POST", f"/v1/sandboxes/{sandbox_id}/snapshots").json["id"]
    answer = caller.ask("POST", f"/v1/snapshots/{snapshot_id}/save", {"name": name, "disk": True})
    assert answer.status == 204
    assert caller.ask("DELETE", f"/v1/snapshots/{snapshot_id}").status == 204


def test_what_is_saved_is_there_after_a_restart_and_is_each_keys_own(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        alice, bob = (Caller(server.url, server.create_key(name)) for name in ("alice", "bob"))
        save(alice, "mine", "x = 'of alice'")
        save(bob, "mine", "x = 'of bob'")
        save(bob, "only-bobs", "x = 1")
        assert server.stop() == 0
        server.start()
        for caller in (alice, bob):
            caller.port = server.port
        assert [caller.run(caller.sandbox(template="mine"), "x")["value"] for caller in (alice, bob)] == [
            "'of alice'",
            "'of bob'",
        ]
        assert alice.ask("POST", "/v1/sandboxes", {"template": "only-bobs"}).status == 400
        # Each key removes its own, however often.
        for _ in range(2):
            assert alice.ask("DELETE", "/v1/templates/mine").status == 204
        assert alice.ask("DELETE", "/v1/templates/only-bobs").status == 204
        assert alice.ask("POST", "/v1/sandboxes", {"template": "mine"}).status == 400
        kept = [bob.run(bob.sandbox(template=name), "x")["value"] for name in ("mine", "only-bobs")]
        assert kept == ["'of bob'", "1"]
        assert alice.ask("DELETE", "/v1/templates/..%2Fkey").status in (400, 404)
        # Not where the workers of a server can read.
        assert not any(path.name == "key" for path in server.state.rglob("*"))


@pytest.mark.deep("restarts")
def test_a_persistent_sandbox_is_resumed_after_a_restart_until_it_is_discarded(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        alice, bob = (Caller(server.url, server.create_key(name)) for name in ("alice", "bob"))
        sandbox_id = alice.sandbox(persistent=True)
        alice.run(sandbox_id, "x = 41; open('/root/note', 'w').write('kept')")
        assert alice.ask("DELETE", f"/v1/sandboxes/{sandbox_id}").status == 204
        assert server.stop() == 0
        server.start()
        for caller in (alice, bob):
            caller.port = server.port
        assert bob.ask("POST", f"/v1/spaces/{sandbox_id}/resume", {}).status in (404, 410)
        for _ in range(2):
            resumed = alice.ask("POST", f"/v1/spaces/{sandbox_id}/resume", {})
            assert resumed.status == 201, resumed.body
            assert alice.run(resumed.json["id"], "x + 1, open('/root/note').read()")["value"] == "(42, 'kept')"
        assert bob.ask("DELETE", f"/v1/spaces/{sandbox_id}").status in (204, 404)
        assert alice.ask("DELETE", f"/v1/spaces/{sandbox_id}").status == 204
        assert alice.ask("POST", f"/v1/spaces/{sandbox_id}/resume", {}).status in (404, 410)
