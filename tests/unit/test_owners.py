"""What belongs to one owner does not exist for another, whatever the header of a request combines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from ramet.errors import ExecutionUnknown, InvalidArgument, LimitReached, RametError
from ramet.protocol import calls
from ramet.protocol.values.specs import SandboxSpec, TemplateSpec
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import SETTINGS, SPEC, Engine, take
from tests.waiting import until

Connect = Callable[[], Client]
EXECUTION = "exe_" + "a" * 32


class World(NamedTuple):
    """Ids of what two owners have."""

    mine: str
    my_snapshot: str
    yours: str
    your_snapshot: str
    your_space: str
    your_ended: str


async def world(engine: Engine, connect: Connect) -> World:
    """Yours has an execution and a saved snapshot too, and one of yours has ended."""
    mine, _ = await engine.used(replace(SPEC, owner="me"))
    yours, body = await engine.used(replace(SPEC, owner="you"))
    space, _ = await engine.used(replace(SPEC, owner="you", persistent=True))
    ended, _ = await engine.used(replace(SPEC, owner="you"))
    client = connect()
    client.run(yours.id, execution=EXECUTION, owner="you")
    await body.next_frame()
    body.done(2)
    await client.answers()
    for sandbox in (space, ended):
        await client.ask(calls.CLOSE, sandbox=sandbox.id, owner="you")
    my_snapshot, your_snapshot = await take(engine, mine), await take(engine, yours)
    await client.ask(calls.SAVE, snapshot=your_snapshot.id, name="yours", owner="you")
    return World(mine.id, my_snapshot.id, yours.id, your_snapshot.id, space.id, ended.id)


RUN: dict[str, object] = {"language": "python", "timeout": None, "stream": False}
FORK: dict[str, object] = {"count": 1, "reseed": False}
RESUME: dict[str, object] = {"lifetime": None, "persistent": False}

# Each with the field that names what is yours; the others name what is mine.
CALLS: list[tuple[int, str, dict[str, object]]] = [
    (calls.RUN, "sandbox", RUN),
    (calls.RUN, "sandbox", {**RUN, "execution": "exe_" + "b" * 32}),
    (calls.INTERRUPT, "sandbox", {}),
    (calls.INFO, "sandbox", {}),
    (calls.READ, "sandbox", {"path": "a"}),
    (calls.WRITE, "sandbox", {"path": "a", "more": False}),
    (calls.LIST, "sandbox", {"path": "a"}),
    (calls.STAT, "sandbox", {"path": "a"}),
    (calls.MKDIR, "sandbox", {"path": "a", "parents": False}),
    (calls.REMOVE, "sandbox", {"path": "a", "recursive": True}),
    (calls.RENAME, "sandbox", {"path": "a", "new_path": "b"}),
    (calls.FORK, "sandbox", FORK),
    (calls.SNAPSHOT, "sandbox", {}),
    (calls.THAW, "snapshot", {"environment": {}}),
    (calls.RESTORE, "sandbox", {"snapshot": "mine"}),
    (calls.RESTORE, "snapshot", {"sandbox": "mine"}),
    (calls.MERGE, "sandbox", {"winner": "mine"}),
    (calls.MERGE, "winner", {"sandbox": "mine"}),
    (calls.DIFF, "sandbox", {"other": "mine", "paths": None}),
    (calls.DIFF, "other", {"sandbox": "mine", "paths": None}),
    (calls.SAVE, "snapshot", {"name": "a"}),
    (calls.EXTEND, "sandbox", {"timeout_seconds": 1}),
    (calls.REPLAY, "sandbox", {}),
    (calls.FETCH, "sandbox", {"execution": EXECUTION, "wait": False}),
    (calls.CANCEL, "sandbox", {"execution": EXECUTION}),
    (calls.RESUME, "space", RESUME),
    (calls.TERMINAL_OPEN, "sandbox", {"argv": ["sh"], "env": {}, "cwd": None, "cols": 80, "rows": 24}),
    (calls.TERMINAL_LIST, "sandbox", {}),
]


@pytest.mark.parametrize(("kind", "field", "more"), CALLS)
async def test_what_is_yours_is_to_me_as_if_it_had_never_been(
    engine: Engine, connect: Connect, kind: int, field: str, more: dict[str, object]
) -> None:
    known = await world(engine, connect)
    closed = [frozen.closed for frozen in engine.machine.snapshots]  # the checkpoint of a persistent one is closed
    client = connect()
    my_things = {"sandbox": known.mine, "winner": known.mine, "other": known.mine, "snapshot": known.my_snapshot}
    header = {name: my_things[name] if value == "mine" else value for name, value in more.items()}
    targets = {"snapshot": [known.your_snapshot], "space": [known.your_space, known.yours, known.your_ended]}
    for target in targets.get(field, [known.yours, known.your_ended]):
        unknown = target[:-4] + "0000"
        errors = []
        for some_id in (target, unknown):
            with pytest.raises(RametError) as caught:
                await client.ask(kind, **{**header, field: some_id, "owner": "me"})
            error = caught.value
            errors.append((type(error), error.message.replace(some_id, "ID"), error.hint, error.details))
        assert errors[0] == errors[1]
    bodies = len(engine.machine.bodies)
    assert bodies == 4
    assert [body.closed for body in engine.machine.bodies] == [False, False, True, True]
    assert [frozen.closed for frozen in engine.machine.snapshots] == closed


@pytest.mark.parametrize(
    ("kind", "field"), [(calls.CLOSE, "sandbox"), (calls.DROP, "snapshot"), (calls.DISCARD, "space")]
)
async def test_what_is_yours_is_not_closed_by_me(engine: Engine, connect: Connect, kind: int, field: str) -> None:
    known = await world(engine, connect)
    target = {"sandbox": known.yours, "snapshot": known.your_snapshot, "space": known.your_space}[field]
    answer = await connect().ask(kind, **{field: target, "owner": "me"})
    assert answer.header == {}
    assert engine.registry.find(known.yours, "you")
    assert engine.registry.snapshots.find(known.your_snapshot, "you")
    assert engine.registry.kept.find(known.your_space, "you") is not None


async def test_the_execution_of_another_sandbox_is_unknown_in_this_one(engine: Engine, connect: Connect) -> None:
    known = await world(engine, connect)
    for kind in (calls.FETCH, calls.CANCEL):
        for owner in ("me", None):
            with pytest.raises(ExecutionUnknown):
                await connect().ask(kind, sandbox=known.mine, execution=EXECUTION, wait=True, owner=owner)


async def test_the_same_execution_id_can_be_used_by_both(engine: Engine, connect: Connect) -> None:
    known = await world(engine, connect)
    client = connect()
    client.run(known.mine, execution=EXECUTION, owner="me")
    body = engine.machine.bodies[0]
    await body.next_frame()
    body.done(2)
    assert (await client.answer()).kind == calls.RESULT


async def test_lists_and_figures_hold_what_is_of_the_owner(engine: Engine, connect: Connect) -> None:
    known = await world(engine, connect)
    client = connect()
    rows = (await client.ask(calls.SANDBOXES, owner="me")).header["sandboxes"]
    assert [row["id"] for row in rows] == [known.mine]  # type: ignore[attr-defined]
    stats = (await client.ask(calls.STATS, owner="me")).header
    assert list(stats["owners"]) == ["me"]  # type: ignore[call-overload]
    assert (stats["snapshots"], stats["spaces"]) == (1, 0)
    news = (await client.ask(calls.WATCH, owner="me")).header
    assert known.yours not in str(news)
    assert known.your_snapshot not in str(news)
    assert known.your_space not in str(news)


async def test_who_names_no_owner_sees_everything(engine: Engine, connect: Connect) -> None:
    known = await world(engine, connect)
    client = connect()
    for some_id in (known.mine, known.yours):
        assert (await client.ask(calls.INFO, sandbox=some_id)).header["id"] == some_id
    rows = (await client.ask(calls.SANDBOXES)).header["sandboxes"]
    assert len(rows) == 2  # type: ignore[arg-type]


async def test_children_and_copies_belong_to_the_owner_of_the_first(engine: Engine, connect: Connect) -> None:
    known = await world(engine, connect)
    client = connect()
    answers = [
        await client.ask(calls.THAW, snapshot=known.your_snapshot, environment={}, owner="you"),
        await client.ask(calls.THAW, name="yours", environment={}, owner="you"),
        await client.ask(calls.RESUME, space=known.your_space, owner="you", **RESUME),
    ]
    forked = await client.ask(calls.FORK, sandbox=known.yours, owner="you", **FORK)
    made = [answer.header["id"] for answer in answers]
    made += [child["id"] for child in forked.header["children"]]  # type: ignore[attr-defined]
    for some_id in made:
        assert engine.registry.find(str(some_id)).owner == "you"


async def test_a_sandbox_stays_its_owners_whatever_it_becomes(engine: Engine, connect: Connect) -> None:
    known = await world(engine, connect)
    client = connect()
    # Only one who sees everything can do such a thing.
    await client.ask(calls.RESTORE, sandbox=known.mine, snapshot=known.your_snapshot)
    assert engine.registry.find(known.mine).owner == "me"
    await client.ask(calls.MERGE, sandbox=known.mine, winner=known.yours)
    assert engine.registry.find(known.mine).owner == "me"


async def test_names_of_saved_snapshots_are_each_owners_own(engine: Engine, connect: Connect) -> None:
    known = await world(engine, connect)
    client = connect()
    for owner in ("me", None):
        with pytest.raises(InvalidArgument, match="there is no template .yours."):
            await client.ask(calls.THAW, name="yours", environment={}, owner=owner)
    await client.ask(calls.SAVE, snapshot=known.my_snapshot, name="yours", owner="me")
    made = await client.ask(calls.THAW, name="yours", environment={}, owner="me")
    assert engine.registry.find(str(made.header["id"])).owner == "me"
    with pytest.raises(InvalidArgument, match="must be one that no template has yet, got 'yours'"):
        await client.ask(calls.SAVE, snapshot=known.my_snapshot, name="yours", owner="me")


def templated(owner: str, *preload: str) -> SandboxSpec:
    return replace(SPEC, owner=owner, template=TemplateSpec("own", SPEC.template.interpreter, preload, builtin=False))


async def test_names_of_templates_are_each_owners_own(engine: Engine, connect: Connect) -> None:
    await engine.create(templated("me", "json"))
    yours, _ = await engine.used(templated("you", "csv"))
    with pytest.raises(InvalidArgument, match="other preloads"):
        await engine.create(templated("you", "json"))
    taken = await take(engine, yours)
    with pytest.raises(InvalidArgument, match="name must be one that no template has yet, got .own."):
        await connect().ask(calls.SAVE, snapshot=taken.id, name="own", owner="you")
    mine, _ = await engine.used(replace(SPEC, owner="they"))
    await connect().ask(calls.SAVE, snapshot=(await take(engine, mine)).id, name="own", owner="they")
    with pytest.raises(InvalidArgument, match="is already saved as 'own'"):
        await engine.create(templated("they"))


async def test_one_owner_does_not_take_the_room_of_all(engine: Engine) -> None:
    engine.registry.snapshots._settings = replace(SETTINGS, snapshots=3, snapshots_of_an_owner=2)
    mine, _ = await engine.used(replace(SPEC, owner="me"))
    yours, _ = await engine.used(replace(SPEC, owner="you"))
    await take(engine, mine)
    await take(engine, mine)
    with pytest.raises(LimitReached, match="you hold 2"):
        await take(engine, mine)
    await take(engine, yours)


async def test_a_waiting_cell_of_yours_is_not_seen_by_me(engine: Engine, connect: Connect) -> None:
    known = await world(engine, connect)
    caller = connect()
    caller.run(known.yours, execution="exe_" + "c" * 32, on_disconnect="keep", owner="you")
    await until(lambda: engine.registry.find(known.yours).state == "running")
    with pytest.raises(RametError, match="there is no sandbox"):
        await connect().ask(calls.CANCEL, sandbox=known.yours, execution="exe_" + "c" * 32, owner="me")
    assert engine.machine.bodies[1].signals == []
