"""What an owner may have at once: counted from the moment it is asked for, however many ask, and whoever goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.engine.cells.turns import Caller
from ramet.engine.making import fork, merge, thaw
from ramet.engine.making.quotas import Quotas
from ramet.engine.output.executions import Executions, Shelf
from ramet.errors import InvalidArgument, LimitReached
from ramet.protocol import calls
from ramet.protocol.calls import Outcome
from ramet.protocol.checks import MIB
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import MountSpec, ThawSpec
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import SETTINGS, SPEC, Engine, take, work
from tests.waiting import until

Connect = Callable[[], Client]
MINE = replace(SPEC, owner="me", limits=replace(SPEC.limits, memory_bytes=100 * MIB))


def quotas(living: int = 0, leaving: int = 0) -> Quotas:
    return Quotas(lambda _: [100 * MIB] * living, lambda _: [100 * MIB] * leaving)


def test_what_is_being_made_counts_with_what_there_is() -> None:
    some, most = quotas(living=1), Allowance(sandboxes=3)
    with some.reserve("me", most, 1, 0):
        with pytest.raises(LimitReached, match="has 2 sandboxes; its limit is 3"):
            some.reserve("me", most, 2, 0)
        some.reserve("you", most, 2, 0)
        room = some.reserve("me", most, 1, 0)
        with pytest.raises(LimitReached):
            some.reserve("me", most, 1, 0)
        room.release()
        room.release()
    some.reserve("me", most, 2, 0)


def test_memory_is_the_sum_of_the_limits() -> None:
    some, most = quotas(living=1), Allowance(memory_bytes=250 * MIB)
    with some.reserve("me", most, 1, 100 * MIB):
        with pytest.raises(LimitReached, match="250 MiB") as caught:
            some.reserve("me", most, 2, 50 * MIB)
        assert caught.value.details == {"limit": "memory_mib", "allowed": 250}
        some.reserve("me", most, 1, 50 * MIB)


def test_who_closes_one_can_have_another_at_once_but_not_for_ever() -> None:
    most = Allowance(sandboxes=2, memory_bytes=200 * MIB)
    quotas(living=1, leaving=2).reserve("me", most, 1, 100 * MIB)
    with pytest.raises(LimitReached):
        quotas(living=1, leaving=3).reserve("me", most, 1, 100 * MIB)


def test_the_bounds_of_the_machine_are_for_all_owners_together() -> None:
    some, most = quotas(living=1), Allowance(sandboxes=100, all_sandboxes=3, all_memory_bytes=1000 * MIB)
    with some.reserve("me", most, 1, 100 * MIB), some.reserve("you", most, 1, 100 * MIB):
        for owner in ("me", "you", "somebody new"):
            with pytest.raises(LimitReached, match="at most 3 sandboxes at once") as caught:
                some.reserve(owner, most, 1, 0)
            assert caught.value.details == {"limit": "all_sandboxes", "allowed": 3}
            assert "--max-sandboxes" in (caught.value.hint or "")
    with pytest.raises(LimitReached, match="at most 1000 MiB") as caught:
        some.reserve("me", most, 2, 500 * MIB)
    assert caught.value.details == {"limit": "all_memory_mib", "allowed": 1000}
    some.reserve("me", most, 2, 450 * MIB)


def test_what_is_made_to_install_packages_counts_for_the_machine() -> None:
    some, most = quotas(), Allowance(all_sandboxes=2)
    with some.reserve("me", most, 1, 0):
        hidden = some.reserve_hidden("me", 0)
        with pytest.raises(LimitReached, match="at most 2 sandboxes"):
            some.reserve("you", most, 1, 0)
        hidden.release()
        some.reserve("you", most, 1, 0)


def test_without_an_allowance_there_is_no_limit() -> None:
    some = quotas(living=1000)
    for _ in range(1000):
        some.reserve("", Allowance(), 256, 2**40)
    with pytest.raises(LimitReached, match="257000 sandboxes"):
        some.reserve("", Allowance(sandboxes=257_000), 1, 2**40)


def test_templates_that_boot_count_with_those_there_are() -> None:
    some, most = quotas(), Allowance(templates=2)
    with some.boot("me", "one", most, ()), some.boot("me", "one", most, ()), some.boot("you", "other", most, ()):
        with some.boot("me", "two", most, {"one"}), pytest.raises(LimitReached, match="2 templates"):
            some.check_template("me", "three", most, {"one"})
        some.check_template("me", "three", most, {"one"})
    with pytest.raises(LimitReached, match="templates"), some.boot("me", "three", most, {"one", "two"}):
        pass


async def test_many_who_create_at_once_get_no_more_than_is_allowed(engine: Engine) -> None:
    most = Allowance(sandboxes=3)
    made = await asyncio.gather(*(engine.create(MINE, most) for _ in range(10)), return_exceptions=True)
    assert [isinstance(one, LimitReached) for one in made].count(False) == 3
    with pytest.raises(LimitReached):
        fork.fork(engine.registry, engine.registry.all_of("me")[0], 1, False, Caller(), most)
    assert engine.registry.all_of("me")[0].queue.waiting == 0


async def test_a_thawed_sandbox_counts_with_the_memory_of_the_frozen_one(engine: Engine) -> None:
    """Who thaws says nothing of memory: it was once counted as none."""
    sandbox, _ = await engine.used(MINE)
    taken = await take(engine, sandbox)
    most = Allowance(memory_bytes=199 * MIB)
    with pytest.raises(LimitReached, match="199 MiB"):
        await thaw.thaw(engine.registry, ThawSpec(taken.id, None), Caller(), "me", most)
    await engine.registry.close_sandbox(sandbox.id)
    thawing = [work(thaw.thaw(engine.registry, ThawSpec(taken.id, None), Caller(), "me", most)) for _ in range(5)]
    made = await asyncio.gather(*thawing, return_exceptions=True)
    assert [isinstance(one, LimitReached) for one in made].count(False) == 1


async def test_a_resumed_sandbox_counts_with_its_memory(engine: Engine, connect: Connect) -> None:
    sandbox, _ = await engine.used(replace(MINE, persistent=True))
    other = await engine.create(MINE)
    await engine.registry.close_sandbox(sandbox.id)
    asked: dict[str, Any] = {"space": sandbox.id, "lifetime": None, "persistent": False, "owner": "me"}
    most = Allowance(memory_bytes=199 * MIB).header()
    with pytest.raises(LimitReached, match="199 MiB"):
        await connect().ask(calls.RESUME, **asked, allowance=most)
    await engine.registry.close_sandbox(other.id)
    await connect().ask(calls.RESUME, **asked, allowance=most)


async def test_a_sandbox_counts_with_the_memory_of_the_one_that_it_became(engine: Engine) -> None:
    small = replace(MINE, limits=replace(MINE.limits, memory_bytes=64 * MIB))
    parent, winner = await engine.create(small), await engine.create(MINE)
    await engine.merge(parent, winner)
    with pytest.raises(LimitReached, match="add up to 100 MiB, with this one 164 MiB; at most 163 MiB are allowed"):
        await engine.create(small, Allowance(memory_bytes=163 * MIB))


async def test_a_fork_behind_a_merge_counts_with_the_memory_that_the_merge_has_brought(engine: Engine) -> None:
    small = replace(MINE, limits=replace(MINE.limits, memory_bytes=64 * MIB))
    parent, winner = await engine.create(small), await engine.create(MINE)
    most = Allowance(memory_bytes=420 * MIB)
    merging = work(merge.merge(engine.registry, parent, winner, Caller()))
    forking = work(fork.fork(engine.registry, parent, 4, False, Caller(), most))  # 256 MiB beside 164 when asked
    await merging
    with pytest.raises(LimitReached, match="add up to 100 MiB, with this one 500 MiB; at most 420 MiB are allowed"):
        await forking
    assert engine.registry.all_of("me") == [parent]
    # What was taken for it is free again.
    await engine.create(replace(MINE, limits=replace(MINE.limits, memory_bytes=320 * MIB)), most)


async def test_a_template_that_nobody_waits_for_any_more_counts_while_it_boots(
    engine: Engine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    boots: list[str] = []
    go_on = asyncio.Event()

    async def template(spec: Any) -> None:
        boots.append(spec.name)
        await go_on.wait()

    monkeypatch.setattr(engine.machine, "template", template)
    most = Allowance(templates=2).header()

    def own(name: str) -> dict[str, object]:
        template = replace(MINE.template, name=name, builtin=False, preload=("json",))
        return {**replace(MINE, template=template).header(), "allowance": most}

    for number, name in enumerate(("one", "two"), 1):
        client = connect()
        client.send(calls.CREATE, **own(name))
        await until(lambda number=number: len(boots) == number)  # type: ignore[misc]
        client.leave()
    for name in ("three", "four"):
        with pytest.raises(LimitReached, match="2 templates"):
            await connect().ask(calls.CREATE, **own(name))
    go_on.set()
    await until(lambda: not engine.registry.all_of("me") and all(body.closed for body in engine.machine.bodies))


async def test_a_saved_snapshot_is_a_template_that_counts(engine: Engine) -> None:
    sandbox, _ = await engine.used(MINE)
    taken = await take(engine, sandbox)
    most = Allowance(templates=1)
    engine.registry.templates.save(taken, "one", most)
    with pytest.raises(LimitReached, match="1 templates"):
        engine.registry.templates.save(taken, "two", most)


async def test_many_who_take_snapshots_at_once_get_no_more_than_there_is_room_for(engine: Engine) -> None:
    """All were once let in while the first was still waiting for its turn."""
    sandbox, _ = await engine.used(MINE)
    turns = Caller().queue(sandbox, needs_repl=True)
    async with turns:
        taking = [work(thaw.snapshot(engine.registry, sandbox, Caller())) for _ in range(8)]
        await until(lambda: sandbox.queue.waiting == 8)
    made = await asyncio.gather(*taking, return_exceptions=True)
    assert [isinstance(one, LimitReached) for one in made].count(False) == SETTINGS.snapshots
    assert len(engine.registry.snapshots) == SETTINGS.snapshots


async def test_snapshots_that_are_being_taken_count_with_those_there_are(engine: Engine) -> None:
    freezing = engine.machine.gate("freeze")
    sandboxes = [(await engine.used(MINE))[0] for _ in range(SETTINGS.snapshots + 1)]
    taking = [work(thaw.snapshot(engine.registry, sandbox, Caller())) for sandbox in sandboxes]
    await until(lambda: taking[-1].done() or engine.machine.reached.count("freeze") == len(taking))
    freezing.set()
    made = await asyncio.gather(*taking, return_exceptions=True)
    assert [isinstance(one, LimitReached) for one in made] == [False] * SETTINGS.snapshots + [True]


# An engine that serves others shows nothing of the host, whoever asks


@pytest.fixture
async def sealed(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(tmp_path, replace(SETTINGS, interpreter=SPEC.template.interpreter))
    yield engine
    await engine.registry.close()


async def test_a_sealed_engine_mounts_nothing(sealed: Engine) -> None:
    mount = MountSpec("/home/me/.ssh", "/mnt", writable=False)
    with pytest.raises(InvalidArgument, match="^this engine allows no mounts"):
        await sealed.create(replace(SPEC, mounts=(mount,)))
    sandbox, _ = await sealed.used()
    taken = await take(sealed, sandbox)
    with pytest.raises(InvalidArgument, match="^this engine allows no mounts"):
        await thaw.thaw(sealed.registry, ThawSpec(taken.id, None, mounts=(mount,)), Caller())


async def test_a_sealed_engine_shows_no_interpreter_but_its_own(sealed: Engine) -> None:
    own = SPEC.template.interpreter
    for other in (replace(own, trees=(*own.trees, "/home/me")), replace(own, library="/home/me")):
        template = replace(SPEC.template, name="mine", builtin=False, interpreter=other)
        with pytest.raises(InvalidArgument, match="^this engine only makes sandboxes from "):
            await sealed.create(replace(SPEC, template=template))


# Results of executions


def test_who_keeps_most_results_loses_theirs_first() -> None:
    shelf = Shelf(10_000)
    mine, yours = Executions(SETTINGS, shelf, "me"), Executions(SETTINGS, shelf, "you")

    def run(of: Executions, number: int) -> str:
        execution = of.begin(f"exe_{number:032x}", keep=True, caller=lambda _: None)
        execution.on_outcome(Outcome(1, 0, "kept", stdout=b"x" * 1000))
        return execution.id

    first = run(mine, 0)
    for number in range(50):
        run(yours, number)
    assert mine.find(first).final is not None
    assert shelf.kept_bytes <= 10_000


async def test_a_sandbox_that_installs_packages_counts_until_it_is_closed(engine: Engine) -> None:
    most = Allowance(sandboxes=2, memory_bytes=200 * MIB)
    await engine.create(MINE, most)
    hidden = await engine.registry.workshop.hidden(MINE)
    with pytest.raises(LimitReached):
        await engine.registry.workshop.hidden(MINE)
    with pytest.raises(LimitReached, match="has 2 sandboxes, 1 of them to install packages; its limit is 2"):
        await engine.create(MINE, most)
    other = await engine.registry.workshop.hidden(replace(MINE, owner="you"))
    await hidden.close()
    again = await engine.registry.workshop.hidden(MINE)
    await asyncio.gather(again.close(), other.close())
    await engine.create(MINE, most)
    with pytest.raises(LimitReached):
        await engine.registry.workshop.hidden(MINE)


async def test_a_sandbox_that_could_not_be_made_to_install_packages_takes_no_room(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = Allowance(memory_bytes=200 * MIB)
    await engine.create(MINE, most)

    async def fails(*_: Any) -> None:
        raise OSError("no")

    with monkeypatch.context() as failing:
        failing.setattr(engine.machine, "create", fails)
        with pytest.raises(OSError, match="no"):
            await engine.registry.workshop.hidden(MINE)
    await (await engine.registry.workshop.hidden(MINE)).close()


def test_allowances_are_forgotten_only_of_owners_who_have_nothing() -> None:
    some = Quotas(lambda owner: [MIB] * (owner == "has one"), lambda _: [])
    most = Allowance(sandboxes=1)
    some.reserve("has one", most, 0, 0)
    for number in range(2000):
        some.reserve(f"owner {number}", most, 0, 0).release()
    assert len(some._allowances) <= 1001
    with pytest.raises(LimitReached):
        some.reserve_hidden("has one", MIB)
