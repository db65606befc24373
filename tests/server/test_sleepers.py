"""Sandboxes of a server that sleep on disk, or survive it: under their ids, each key's own."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.behaviour.waiting import wait_until
from tests.processes import descendants
from tests.server.asking import Caller
from tests.server.running import Server, running_server


def _states(caller: Caller) -> dict[str, str]:
    return {row["id"]: row["state"] for row in caller.ask("GET", "/v1/sandboxes").json["sandboxes"]}


def _again(server: Server, *callers: Caller) -> None:
    server.start()
    for caller in callers:
        caller.port = server.port


def test_a_hibernated_sandbox_is_woken_by_a_call_and_takes_no_quota(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        alice = Caller(server.url, server.create_key("alice", "--sandboxes", "1"))
        first = alice.sandbox()
        alice.run(first, "x = 41")
        asleep = alice.ask("POST", f"/v1/sandboxes/{first}/hibernate")
        assert (asleep.status, asleep.json["size_bytes"] > 0) == (200, True)
        assert _states(alice) == {first: "hibernated"}
        assert alice.ask("GET", f"/v1/sandboxes/{first}").json["state"] == "hibernated"
        second = alice.sandbox()
        full = alice.ask("POST", f"/v1/sandboxes/{first}/exec", {"code": "x"})
        assert (full.status, full.json["code"]) == (429, "limit_reached")
        assert _states(alice)[first] == "hibernated"
        assert alice.ask("DELETE", f"/v1/sandboxes/{second}").status == 204
        assert alice.run(first, "x + 1")["value"] == "42"
        # What hibernates counts as its images on disk do.
        small = Caller(server.url, server.create_key("small", "--image-mib", "1"))
        first, second = small.sandbox(), small.sandbox()
        small.run(first, "import os; data = os.urandom(2 << 20)")
        assert small.ask("POST", f"/v1/sandboxes/{first}/hibernate").status == 200
        full = small.ask("POST", f"/v1/sandboxes/{second}/hibernate")
        assert (full.status, full.json["details"]["limit"]) == (429, "image_mib")
        assert _states(small) == {first: "hibernated", second: "idle"}


@pytest.mark.parametrize("how", ["stop", pytest.param("kill", marks=pytest.mark.deep("load"))])
def test_sandboxes_on_disk_are_there_again_after_a_restart(tmp_path: Path, how: str) -> None:
    with running_server(tmp_path) as server:
        alice, bob = (Caller(server.url, server.create_key(name)) for name in ("alice", "bob"))
        asleep, lasting = alice.sandbox(), alice.sandbox(persistent=True)
        bobs = bob.sandbox()
        alice.run(asleep, "x = 1; open('/root/note', 'w').write('kept')")
        alice.run(lasting, "x = 2")
        bob.run(bobs, "x = 3")
        for caller, each in ((alice, asleep), (alice, lasting), (bob, bobs)):
            assert caller.ask("POST", f"/v1/sandboxes/{each}/hibernate").status == 200
        if how == "stop":
            assert server.stop() == 0
        else:
            # Supervisor, worker, keeper, engine: all that the server has started, at once.
            for pid in [server.process.pid, *descendants(server.process.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            server.wait()
        _again(server, alice, bob)
        assert _states(alice) == {asleep: "hibernated", lasting: "hibernated"}
        assert _states(bob) == {bobs: "hibernated"}
        assert alice.ask("GET", f"/v1/sandboxes/{asleep}").json["state"] == "hibernated"
        assert alice.ask("GET", f"/v1/sandboxes/{bobs}").status in (404, 410)
        assert alice.ask("POST", f"/v1/sandboxes/{bobs}/exec", {"code": "x"}).status in (404, 410)
        note = alice.ask("GET", f"/v1/sandboxes/{asleep}/files?path=/root/note")
        assert (note.status, note.body) == (200, b"kept")
        assert alice.run(asleep, "x")["value"] == "1"
        assert alice.run(lasting, "x")["value"] == "2"
        assert _states(bob) == {bobs: "hibernated"}
        assert bob.ask("DELETE", f"/v1/sandboxes/{bobs}").status == 204
        assert _states(bob) == {}


@pytest.mark.deep("restarts")
def test_sandboxes_on_disk_are_there_again_after_the_engine_was_killed(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        alice = Caller(server.url, server.create_key("alice"))
        asleep, lasting, other = alice.sandbox(), alice.sandbox(persistent=True), alice.sandbox()
        alice.run(asleep, "x = 1")
        alice.run(lasting, "x = 2")
        for each in (asleep, lasting):
            assert alice.ask("POST", f"/v1/sandboxes/{each}/hibernate").status == 200
        server.kill_engine()
        wait_until(lambda: alice.ask("POST", "/v1/sandboxes", {}).status == 201, "there is a new engine")
        states = _states(alice)
        assert (states.get(asleep), states.get(lasting), states.get(other)) == ("hibernated", "hibernated", None)
        assert (alice.run(asleep, "x")["value"], alice.run(lasting, "x")["value"]) == ("1", "2")
        assert alice.ask("POST", f"/v1/sandboxes/{other}/exec", {"code": "x"}).status in (404, 410)


@pytest.mark.deep("restarts")
def test_states_of_closed_sandboxes_count_towards_the_disk_of_their_key(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        small = Caller(server.url, server.create_key("small", "--image-mib", "1"))
        closed = []
        for _ in range(2):
            closed.append(small.sandbox(persistent=True))
            small.run(closed[-1], "import os; data = os.urandom(2 << 20)")
            assert small.ask("DELETE", f"/v1/sandboxes/{closed[-1]}").status == 204
        # Both are in memory; for the second there was no room on disk.
        assert small.ask("POST", f"/v1/spaces/{closed[1]}/resume", {}).status == 201
        assert server.stop() == 0
        _again(server, small)
        found = [small.ask("POST", f"/v1/spaces/{each}/resume", {}) for each in closed]
        assert [each.status for each in found] == [201, 404], [each.body for each in found]


@pytest.mark.deep("restarts")
def test_a_lifetime_that_was_extended_is_the_one_that_counts_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        alice = Caller(server.url, server.create_key("alice"))
        sandbox_id = alice.sandbox(timeout_seconds=6)
        alice.run(sandbox_id, "x = 41")
        ends_ms = alice.ask("GET", f"/v1/sandboxes/{sandbox_id}").json["expires_ms"]
        assert alice.ask("POST", f"/v1/sandboxes/{sandbox_id}/hibernate").status == 200
        later = alice.ask("POST", f"/v1/sandboxes/{sandbox_id}/extend", {"timeout_seconds": 3000})
        assert later.status == 200, later.body
        assert server.stop() == 0
        while time.time() * 1000 < ends_ms:
            time.sleep(0.05)
        _again(server, alice)
        assert _states(alice) == {sandbox_id: "hibernated"}
        assert alice.run(sandbox_id, "x + 1")["value"] == "42"
        row = alice.ask("GET", f"/v1/sandboxes/{sandbox_id}").json
        assert abs(row["expires_ms"] - later.json["expires_ms"]) < 60_000


@pytest.mark.deep("restarts")
def test_idle_sandboxes_sleep_instead_of_ending_when_the_server_is_told_so(tmp_path: Path) -> None:
    with running_server(tmp_path, "--on-idle", "hibernate", "--idle-timeout", "0.5", "--kept-days", "2") as server:
        alice = Caller(server.url, server.create_key("alice"))
        sandbox_id = alice.sandbox()
        alice.run(sandbox_id, "x = 41")
        until_state(alice, sandbox_id, "hibernated")
        row = alice.ask("GET", f"/v1/sandboxes/{sandbox_id}").json
        assert 86_400_000 < row["expires_ms"] - row["created_ms"] <= 2 * 86_400_000 + 1000
        assert alice.run(sandbox_id, "x + 1")["value"] == "42"
        until_state(alice, sandbox_id, "hibernated")


def until_state(caller: Caller, sandbox_id: str, state: str) -> None:
    """Bounded by the lifetime of the sandbox: a state that never comes becomes an error."""
    for _ in range(3000):
        if _states(caller)[sandbox_id] == state:
            return
    raise AssertionError(f"{sandbox_id} was never {state}")
