"""Lists, figures and news of what an engine holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.values.specs import Lifetime
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import SETTINGS, SPEC, Call, Engine, take
from tests.waiting import until

Connect = Callable[[], Client]


async def test_a_row_says_what_a_sandbox_is(engine: Engine, connect: Connect) -> None:
    sandbox, _ = await engine.used(replace(SPEC, owner="me", lifetime=Lifetime(None, 100)))
    Call(sandbox)
    Call(sandbox)
    rows = (await connect().ask(calls.SANDBOXES)).header["sandboxes"]
    assert isinstance(rows, list)
    row = rows[0]
    assert row.pop("idle_expires_ms") >= row["created_ms"] + 99_000
    assert row == {
        "id": sandbox.id,
        "owner": "me",
        "state": "running",
        "template": "default",
        "created_ms": sandbox.clock.created_ms,
        "expires_ms": None,
        "parent": None,
        "waiting": 1,
        "memory_limit_bytes": 2**30,
        "persistent": False,
    }
    info = (await connect().ask(calls.INFO, sandbox=sandbox.id)).header
    assert {name: info[name] for name in row} == row


async def test_who_watches_gets_all_there_is_and_then_what_begins_and_ends(engine: Engine, connect: Connect) -> None:
    parent, _ = await engine.used(replace(SPEC, owner="me"))
    taken = await take(engine, parent)
    watcher = connect()
    news = (await watcher.ask(calls.WATCH)).header
    assert [row["id"] for row in news["sandboxes"]] == [parent.id]  # type: ignore[attr-defined]
    assert (news["snapshots"], news["spaces"]) == ([{"id": taken.id, "owner": "me"}], [])

    child = (await engine.fork(parent)).sandboxes[0]
    begun = (await watcher.answer()).header
    assert begun["event"] == "begun"
    assert (begun["sandbox"]["id"], begun["sandbox"]["parent"]) == (child.id, parent.id)  # type: ignore[index]
    await engine.merge(parent, child)
    ended = dict((await watcher.answer()).header)
    assert child.id in str(ended.pop("message"))
    assert ended == {"event": "ended", "id": child.id, "owner": "me", "cause": "merged"}
    await connect().ask(calls.CLOSE, sandbox=parent.id)
    assert (await watcher.answer()).header["cause"] == "closed"


async def test_an_owner_who_watches_sees_his_own_only(engine: Engine, connect: Connect) -> None:
    await engine.used(replace(SPEC, owner="you"))
    watcher = connect()
    assert (await watcher.ask(calls.WATCH, owner="me")).header["sandboxes"] == []
    await engine.used(replace(SPEC, owner="you"))
    mine, _ = await engine.used(replace(SPEC, owner="me"))
    assert (await watcher.answer()).header["sandbox"]["id"] == mine.id  # type: ignore[index]


async def read_on(client: Client) -> None:
    while True:
        await client.answer()


async def test_who_watches_without_reading_is_hung_up_on(tmp_path: Path) -> None:
    engine = Engine(tmp_path, replace(SETTINGS, watch_unsent_bytes=1000))
    watcher = Client(engine)
    await watcher.ask(calls.WATCH)
    for _ in range(10_000):
        engine.registry.subscriptions.ended("sbx", "", "closed", "x" * 1000)
        if not engine.registry.subscriptions._all:
            break
    assert not engine.registry.subscriptions._all
    with pytest.raises(AssertionError, match="hung up"):
        await read_on(watcher)
    watcher.leave()
    await engine.registry.close()


async def test_a_watcher_who_leaves_is_forgotten_and_one_who_speaks_is_out_of_step(
    engine: Engine, connect: Connect
) -> None:
    leaver, speaker = connect(), connect()
    await leaver.ask(calls.WATCH)
    await speaker.ask(calls.WATCH)
    leaver.leave()
    speaker.send(calls.SANDBOXES)
    with pytest.raises(ProtocolError):
        await speaker.answer()
    await until(lambda: not engine.registry.subscriptions._all)


async def test_figures_are_added_up_by_owner(engine: Engine, connect: Connect) -> None:
    empty = (await connect().ask(calls.STATS)).header
    assert empty["pool"] == {"ready": 0, "hits": 0, "misses": 0}
    for owner in ("me", "me", "you"):
        sandbox, _ = await engine.used(replace(SPEC, owner=owner))
    Call(sandbox)
    Call(sandbox)
    stats = (await connect().ask(calls.STATS)).header
    figures = {"memory_unique_bytes": 0, "memory_shared_bytes": 0, "connections": {"allowed": 0, "refused": 0}}
    assert stats["owners"] == {
        "me": {"states": {"idle": 2, "running": 0, "lost": 0, "hibernated": 0}, "waiting": 0, **figures},
        "you": {"states": {"idle": 0, "running": 1, "lost": 0, "hibernated": 0}, "waiting": 1, **figures},
    }
    assert (stats["snapshots"], stats["spaces"]) == (0, 0)
