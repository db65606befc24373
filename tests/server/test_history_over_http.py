"""The past of a sandbox over HTTP: shown, undone, rewound, forked from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.asking import Caller
from tests.server.running import Server


@pytest.fixture
def caller(shared_server: Server) -> Caller:
    """Without a key, as on loopback."""
    return Caller(shared_server.url)


@pytest.fixture
def remembering(caller: Caller) -> Iterator[str]:
    """A sandbox that has run three cells and keeps the state before each."""
    sandbox_id = caller.sandbox(history=20)
    for number in (1, 2, 3):
        caller.run(sandbox_id, f"x = {number}")
    yield sandbox_id
    caller.ask("DELETE", f"/v1/sandboxes/{sandbox_id}")


def test_the_past_is_told(caller: Caller, remembering: str) -> None:
    told = caller.ask("GET", f"/v1/sandboxes/{remembering}/history").json
    assert [(point["id"], point["kind"], point["code"]) for point in told["points"]] == [
        ("p0", "start", ""),
        *((f"p{number}", "cell", f"x = {number}") for number in (1, 2, 3)),
    ]
    assert (told["taking"], told["note"]) == ("on", "")


def test_cells_are_undone(caller: Caller, remembering: str) -> None:
    answer = caller.ask("POST", f"/v1/sandboxes/{remembering}/undo")
    assert (answer.status, answer.json["point"]["id"], answer.json["cell_ids"]) == (200, "p2", [3])
    assert caller.run(remembering, "x")["value"] == "2"
    assert caller.ask("POST", f"/v1/sandboxes/{remembering}/undo", {"n": 2}).json["point"]["id"] == "p1"
    assert caller.run(remembering, "x")["value"] == "1"


def test_a_sandbox_is_rewound_and_forked_at_a_point(caller: Caller, remembering: str) -> None:
    forked = caller.ask("POST", f"/v1/sandboxes/{remembering}/fork", {"at": "p1"})
    assert forked.status == 201
    (child,) = forked.json["children"]
    assert caller.run(child, "x")["value"] == "1"
    assert caller.run(remembering, "x")["value"] == "3"
    assert caller.ask("POST", f"/v1/sandboxes/{remembering}/rewind", {"point": "p2"}).status == 200
    assert caller.run(remembering, "x")["value"] == "2"
    caller.ask("DELETE", f"/v1/sandboxes/{child}")


def test_a_death_is_told_with_what_it_cost(caller: Caller, remembering: str) -> None:
    dead = caller.run(remembering, "import os; os._exit(3)")
    assert dead["state"] == "restored"
    assert "restored to the state after cell 3" in dead["stderr"]
    assert caller.run(remembering, "x")["value"] == "3"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("undo", {"n": 0}, 400, "invalid_argument"),
        ("undo", {"n": 9}, 400, "invalid_argument"),
        ("undo", {"n": "1"}, 400, "invalid_argument"),
        ("undo", {"cells": 1}, 400, "invalid_argument"),
        ("rewind", {}, 400, "invalid_argument"),
        ("rewind", {"point": "three"}, 400, "invalid_argument"),
        ("rewind", {"point": "p99"}, 404, "point_unknown"),
        ("fork", {"at": "p99"}, 404, "point_unknown"),
        ("fork", {"at": 7}, 400, "invalid_argument"),
    ],
)
def test_what_is_not_possible_is_refused_and_changes_nothing(
    caller: Caller, remembering: str, path: str, body: dict[str, object], status: int, code: str
) -> None:
    answer = caller.ask("POST", f"/v1/sandboxes/{remembering}/{path}", body)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert caller.run(remembering, "x")["value"] == "3"


@pytest.mark.parametrize("options", [{"history": 0}, {"history": 1001}, {"history": True}, {"recover": "never"}])
def test_options_of_the_history_are_checked(caller: Caller, options: dict[str, object]) -> None:
    answer = caller.ask("POST", "/v1/sandboxes", options)
    assert (answer.status, answer.json["code"]) == (400, "invalid_argument")
