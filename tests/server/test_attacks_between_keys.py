"""What was tried by somebody with a key to have more than it allows, or something of somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.errors import InvalidArgument
from ramet.protocol import calls
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.specs import MountSpec
from ramet.transport.resolving import resolve
from tests.server import engines
from tests.server.running import Server, running_server
from tests.server.talking import Answer, Client

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("keys"), "--require-key") as running:
        yield running


@pytest.fixture(scope="module")
def keys(server: Server) -> dict[str, str]:
    limits = ("--sandboxes", "6", "--memory-mib", "1000")
    return {"alice": server.create_key("alice", *limits), "bob": server.create_key("bob")}


@pytest.fixture
def alice(server: Server, keys: dict[str, str]) -> Iterator[Client]:
    client = Client(server.port, keys["alice"])
    yield client
    for row in rows(client):
        client.remove(str(row["id"]))
    for row in client.ask("GET", "/v1/snapshots").json["snapshots"]:
        client.ask("DELETE", f"/v1/snapshots/{row['id']}")
    client.close()


def rows(client: Client) -> list[dict[str, object]]:
    found: list[dict[str, object]] = client.ask("GET", "/v1/sandboxes").json["sandboxes"]
    return found


def memory_mib(client: Client) -> int:
    return sum(int(str(row["memory_limit_bytes"])) for row in rows(client)) // MIB


def at_once(count: int, port: int, key: str, act: Callable[[Client], Answer]) -> list[int]:
    """The statuses of the same request, many times at the same moment."""

    def once(_: int) -> int:
        client = Client(port, key)
        try:
            return act(client).status
        finally:
            client.close()

    with ThreadPoolExecutor(count) as threads:
        return sorted(threads.map(once, range(count)))


# More than is allowed


def test_thaws_count_with_the_memory_of_what_was_frozen(server: Server, keys: dict[str, str], alice: Client) -> None:
    sandbox_id = alice.create(memory_mib=400)
    snapshot = alice.ask("POST", f"/v1/sandboxes/{sandbox_id}/snapshots").json["id"]
    statuses = at_once(
        8, server.port, keys["alice"], lambda client: client.ask("POST", "/v1/sandboxes", {"snapshot": snapshot})
    )
    assert statuses == [201, *[429] * 7]
    assert memory_mib(alice) == 800


def test_a_sandbox_counts_with_the_memory_of_what_it_became(alice: Client) -> None:
    for _ in range(2):
        small, large = alice.create(memory_mib=64), alice.create(memory_mib=400)
        assert alice.ask("POST", f"/v1/sandboxes/{small}/merge_into/{large}").status == 204
    assert memory_mib(alice) == 800
    answer = alice.ask("POST", "/v1/sandboxes", {"memory_mib": 400})
    assert (answer.status, answer.json["details"]["limit"]) == (429, "memory_mib")


def test_many_creates_and_forks_at_once_get_no_more_than_is_allowed(
    server: Server, keys: dict[str, str], alice: Client
) -> None:
    sandbox_id = alice.create(memory_mib=64)
    at_once(6, server.port, keys["alice"], lambda client: client.ask("POST", "/v1/sandboxes", {"memory_mib": 64}))
    at_once(6, server.port, keys["alice"], lambda one: one.ask("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"n": 2}))
    assert len(rows(alice)) == 6


def test_what_is_made_ahead_does_not_grow_with_every_wish(server: Server, alice: Client) -> None:
    for number in range(20):
        alice.remove(alice.create(memory_mib=100 + number))
    with engines.connect(server.state) as connection:
        facts = engines.ask(connection, calls.FACTS, {}).header
    assert isinstance(facts["pool_ready"], int)
    assert facts["pool_ready"] <= 16


# Something of somebody else's


def test_nothing_of_another_key_is_there(server: Server, keys: dict[str, str], alice: Client) -> None:
    bob = Client(server.port, keys["bob"])
    theirs = alice.create(memory_mib=64)
    execution = alice.execute(theirs, "secret = 1; print(secret)").headers["ramet-execution"]
    snapshot = alice.ask("POST", f"/v1/sandboxes/{theirs}/snapshots").json["id"]
    assert alice.ask("POST", f"/v1/snapshots/{snapshot}/save", {"name": "saved"}).status == 204
    mine = bob.create(memory_mib=64)
    path = f"/v1/sandboxes/{theirs}"
    tried = (
        ("GET", f"{path}/executions/{execution}", None),
        ("GET", f"/v1/sandboxes/{mine}/executions/{execution}", None),
        ("POST", f"{path}/executions/{execution}/cancel", None),
        ("GET", f"{path}/files?path=/etc/hostname", None),
        ("PUT", f"{path}/files?path=/root/x", b"x"),
        ("GET", f"{path}/files/list?path=/", None),
        ("GET", f"{path}/replay", None),
        ("GET", f"{path}/metrics", None),
        ("GET", f"{path}/pty", None),
        ("POST", f"{path}/pty", {"shellCmd": "id"}),
        ("GET", f"{path}/diff/{mine}", None),
        ("GET", f"/v1/sandboxes/{mine}/diff/{theirs}", None),
        ("POST", f"/v1/sandboxes/{mine}/merge_into/{theirs}", None),
        ("POST", f"/v1/sandboxes/{mine}/take/{theirs}", {"files": True}),
        ("POST", f"/v1/sandboxes/{theirs}/take/{mine}", {"files": True}),
        ("POST", f"{path}/merge_into/{mine}", None),
        ("POST", f"/v1/sandboxes/{mine}/restore", {"snapshot": snapshot}),
        ("GET", f"{path}/history", None),
        ("POST", f"{path}/undo", None),
        ("POST", f"{path}/rewind", {"point": "p0"}),
        ("POST", f"{path}/fork", {"at": "p0"}),
        ("POST", f"/v1/snapshots/{snapshot}/save", {"name": "mine"}),
        ("POST", "/v1/sandboxes", {"snapshot": snapshot}),
        ("POST", f"/v1/spaces/{theirs}/resume", None),
    )
    for method, target, body in tried:
        assert bob.ask(method, target, body).status == 404, (method, target)
    assert bob.ask("POST", "/v1/sandboxes", {"template": "saved"}).status == 400
    assert bob.ask("GET", "/v1/snapshots").json == {"snapshots": []}
    for kind, header in (
        (calls.STAT, {"sandbox": theirs, "path": "/", "owner": "local"}),
        (calls.REPLAY, {"sandbox": theirs, "owner": None}),
        (calls.TERMINAL_LIST, {"sandbox": theirs, "owner": alice.ask("GET", "/v1/whoami").json["owner"]}),
    ):
        assert bob.call(kind, header).status == 404
    for kind in (calls.WATCH, calls.STATS, calls.CHUNK, 99):
        assert bob.call(kind, {}).status == 400
    # What is said of other sandboxes: nothing, also where it is no error.
    assert bob.ask("DELETE", f"/v1/snapshots/{snapshot}").status == 204
    assert bob.ask("DELETE", path).status == 204
    assert alice.stdout(theirs, "print(secret)") == "1"
    bob.remove(mine)
    bob.close()


def test_an_idempotency_key_is_ones_own(server: Server, keys: dict[str, str], alice: Client) -> None:
    bob = Client(server.port, keys["bob"])
    wish = {"Idempotency-Key": "the-same"}
    ids = {client.ask("POST", "/v1/sandboxes", {"memory_mib": 64}, wish).json["id"] for client in (alice, bob)}
    assert len(ids) == 2
    for row in rows(bob):
        bob.remove(str(row["id"]))
    bob.close()


# From a worker that was taken over: it speaks with the engine as it likes


def test_the_engine_of_a_server_mounts_no_folder_of_the_host(server: Server, tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("private")
    mount = MountSpec(str(tmp_path), "/mnt/host", writable=True)
    wish = resolve(SandboxOptions())
    template = wish.template
    shown = replace(template.interpreter, trees=(*template.interpreter.trees, str(tmp_path)))
    with engines.connect(server.state) as connection:
        for spec in (
            replace(wish, mounts=(mount,)),
            replace(wish, template=replace(template, name="mine", builtin=False, interpreter=shown)),
        ):
            with pytest.raises(InvalidArgument, match="this engine"):
                engines.ask(connection, calls.CREATE, spec.header())


# From inside a sandbox


def test_code_in_a_sandbox_reaches_neither_server_nor_engine(server: Server, alice: Client) -> None:
    sandbox_id = alice.create(memory_mib=64)
    code = f"""
import os, socket
def tried(family, address):
    try:
        with socket.socket(family) as connection:
            connection.settimeout(2)
            connection.connect(address)
        return "reached"
    except OSError as error:
        return type(error).__name__
print(tried(socket.AF_INET, ("127.0.0.1", {server.port})), tried(socket.AF_UNIX, {str(server.state / "engine.sock")!r}))
print(os.path.exists({str(server.state)!r}))
"""
    said = alice.stdout(sandbox_id, code)
    assert "reached" not in said
    assert said.endswith("False")
