"""Which names one sandbox takes from another, and which both have changed since they were one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history.past import Step, TemplateState
from ramet.engine.making.bring_up import finish_all
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.thaw import thaw_hidden
from ramet.engine.registry import Registry
from ramet.errors import LimitReached, NameUnknown, RametError
from ramet.protocol.guest import GuestNames, Named
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.takes import Chosen

_NOTHING = GuestNames({}, 0)
UNDEFINED = "names are those of the sandbox's global variables; run the cell that makes it"


@dataclass(frozen=True, slots=True)
class NamePlan:
    """The names to take, and those that both have changed."""

    names: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


async def plan_names(
    registry: Registry, receiver: Sandbox, giver: Sandbox, asked: Chosen, prefer: str | None
) -> NamePlan:
    """Compare the names of two sandboxes whose turns the caller has with those of their common ancestor.

    Raises NameUnknown, LimitReached.
    """
    if not asked:
        return NamePlan()
    # No cell has run in the receiver since the two were one: what it has is what both had.
    unchanged = _descends_from(giver, receiver)
    if unchanged and asked is not True:
        return NamePlan(asked)
    ours, theirs = await finish_all(receiver.repl.names(), giver.repl.names())
    missing = [name for name in asked if name not in theirs.names] if asked is not True and not theirs.omitted else []
    if missing:
        raise NameUnknown(f"cannot take {', '.join(missing)}: not defined in sandbox {giver.id}", hint=UNDEFINED)
    if _descends_from(receiver, giver):
        return NamePlan()
    base = ours if unchanged else await _ancestor_names(registry, receiver, giver)
    return _compare(theirs.names if asked is True else asked, base, ours, theirs, prefer)


def _descends_from(descendant: Sandbox, ancestor: Sandbox) -> bool:
    """Whether the variables of the one are as they were when the other had the same."""
    carried = descendant.identity.carried
    return any(ancestor.identity.carried.memory is memory for memory in (*carried.memories, carried.memory))


def _compare(
    candidates: Iterable[str], base: GuestNames, ours: GuestNames, theirs: GuestNames, prefer: str | None
) -> NamePlan:
    taken, conflicts = [], []
    for name in candidates:
        before, mine, other = base.names.get(name), ours.names.get(name), theirs.names.get(name)
        if _equal(mine, other) or _equal(before, other):
            continue  # there already, or not changed by the other
        if (mine is None and before is None) or _equal(before, mine) or prefer == "theirs":
            taken.append(name)
        elif prefer is None:
            conflicts.append(name)
    return NamePlan(tuple(taken), tuple(conflicts))


def _equal(one: Named | None, other: Named | None) -> bool:
    if one is None or other is None or one.fingerprint is None or other.fingerprint is None:
        return False
    return (one.type, one.fingerprint) == (other.type, other.fingerprint)


async def _ancestor_names(registry: Registry, receiver: Sandbox, giver: Sandbox) -> GuestNames:
    """The names of the last common state, if it is kept. Else none: all that differs is a conflict."""
    step = _last_common(receiver, giver)
    if step is None or not isinstance(step.state, Snapshot):
        return _NOTHING
    state = step.state
    state.hold()
    try:
        with registry.workshop.quotas.reserve_hidden(receiver.owner, state.spec.limits.memory_bytes):
            async with AsyncExitStack() as closing:
                return await (await thaw_hidden(registry, state, closing)).repl.names()
    except LimitReached:
        raise
    except RametError:
        return _NOTHING  # the kernel has ended it
    finally:
        await state.let_go()


def _last_common(receiver: Sandbox, giver: Sandbox) -> Step | None:
    steps = {step.origin: step for step in giver.past.steps}
    for own in reversed(receiver.past.steps):
        other = steps.get(own.origin)
        if other is not None:
            kept = [step for step in (own, other) if step.exact and not isinstance(step.state, TemplateState)]
            return kept[0] if kept else None
    return None
