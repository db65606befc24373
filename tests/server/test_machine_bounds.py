"""`ramet serve --max-sandboxes --max-memory`: bounds of the machine, for all keys together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.running import Server, running_server, worker_pid
from tests.server.talking import Client, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("b"), "--max-sandboxes", "4", "--max-memory", "1000M") as server:
        yield server


@pytest.fixture(scope="module")
def keys(server: Server) -> list[str]:
    return [server.create_key("one"), server.create_key("two")]


@pytest.fixture
def clients(server: Server, keys: list[str]) -> Iterator[list[Client]]:
    talkers = [Client(server.port, key) for key in keys]
    yield talkers
    for talker in talkers:
        for row in talker.ask("GET", "/v1/sandboxes").json["sandboxes"]:
            talker.remove(row["id"])
        talker.close()


def room(server: Server) -> bool:
    talker = Client(server.port)
    answer = talker.ask("GET", "/v1/readyz")
    strict = talker.ask("GET", "/v1/readyz?room=true")
    talker.close()
    assert answer.status == 200
    assert strict.status == (200 if answer.json["room"] else 503)
    return bool(answer.json["room"])


@pytest.mark.deep("restarts")
def test_sandboxes_of_all_keys_together_are_limited(server: Server, clients: list[Client]) -> None:
    one, two = clients
    first, second = one.create(memory_mib=64), two.create(memory_mib=64)
    two.create(memory_mib=64)
    one.create(memory_mib=64)
    assert not room(server)
    for answer in (
        one.ask("POST", "/v1/sandboxes", {"memory_mib": 64}),
        two.ask("POST", f"/v1/sandboxes/{second}/fork", {"n": 1}),
    ):
        assert (answer.status, answer.json["details"]["limit"]) == (429, "all_sandboxes")
        assert "at most 4 sandboxes" in answer.error
        assert int(answer.headers["retry-after"]) >= 1
    one.remove(first)
    two.ask("POST", f"/v1/sandboxes/{second}/fork", {"n": 1})
    assert len(two.ask("GET", "/v1/sandboxes").json["sandboxes"]) == 3


@pytest.mark.deep("restarts")
def test_memory_of_all_keys_together_is_limited(clients: list[Client]) -> None:
    one, two = clients
    first = one.create(memory_mib=700)
    answer = two.ask("POST", "/v1/sandboxes", {"memory_mib": 400})
    assert (answer.status, answer.json["details"]) == (429, {"limit": "all_memory_mib", "allowed": 1000})
    answer = one.ask("POST", f"/v1/sandboxes/{first}/fork", {"n": 1})
    assert (answer.status, answer.json["details"]["limit"]) == (429, "all_memory_mib")
    one.remove(first)
    two.create(memory_mib=400)


def test_more_memory_than_the_server_ever_gives_is_not_told_as_a_full_server(clients: list[Client]) -> None:
    answer = clients[0].ask("POST", "/v1/sandboxes", {"memory_mib": 1001})
    assert (answer.status, answer.json["details"]) == (429, {"limit": "all_memory_mib", "allowed": 1000})
    assert "at most 1000 MiB" in answer.error
    assert "asks for 1001 MiB" in answer.error
    assert "full" not in answer.error
    assert "try again" not in answer.json["hint"]


@pytest.mark.deep("restarts")
def test_a_server_says_at_its_start_that_its_bound_is_less_than_a_sandbox_gets_unasked(tmp_path: Path) -> None:
    with running_server(tmp_path, "--max-memory", "100M") as server:
        assert "all must ask for less" in server.banner


def test_what_comes_out_of_a_snapshot_counts(clients: list[Client]) -> None:
    one, two = clients
    first = one.create(memory_mib=600)
    snapshot = one.ask("POST", f"/v1/sandboxes/{first}/snapshots").json["id"]
    answer = one.ask("POST", "/v1/sandboxes", {"snapshot": snapshot})
    assert (answer.status, answer.json["details"]["limit"]) == (429, "all_memory_mib")
    one.remove(first)
    one.create(snapshot=snapshot)
    assert two.ask("POST", "/v1/sandboxes", {"memory_mib": 600}).status == 429
    one.ask("DELETE", f"/v1/snapshots/{snapshot}")


def test_sixty_four_clients_at_once_get_no_more_than_there_is(server: Server, keys: list[str]) -> None:
    def create(number: int) -> int:
        talker = Client(server.port, keys[number % 2])
        status = talker.ask("POST", "/v1/sandboxes", {"memory_mib": 64}).status
        talker.close()
        return status

    with ThreadPoolExecutor(64) as threads:
        statuses = list(threads.map(create, range(64)))
    assert sorted(set(statuses)) == [201, 429]
    assert statuses.count(201) == 4
    for key in keys:
        talker = Client(server.port, key)
        for row in talker.ask("GET", "/v1/sandboxes").json["sandboxes"]:
            talker.remove(row["id"])
        talker.close()


@pytest.mark.deep("restarts")
def test_the_bounds_hold_after_the_server_was_killed(tmp_path: Path) -> None:
    with running_server(tmp_path, "--max-sandboxes", "2") as server:
        client = Client(server.port)
        client.create(memory_mib=64)
        assert room(server)
        client.create(memory_mib=64)
        assert not room(server)
        client.close()
        server.kill()
        server.start()
        client = Client(server.port)
        answer = client.ask("POST", "/v1/sandboxes", {"memory_mib": 64})
        assert (answer.status, answer.json["details"]["limit"]) == (429, "all_sandboxes")
        client.close()


def test_the_bounds_hold_after_the_worker_was_killed(server: Server, clients: list[Client]) -> None:
    one, _ = clients
    for _ in range(4):
        one.create(memory_mib=64)
    old = worker_pid(server)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: worker_pid(server) not in (0, old), "another worker")
    one.close()
    assert one.ask("POST", "/v1/sandboxes", {"memory_mib": 64}).status == 429
