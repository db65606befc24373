"""The steps of one sandbox's past, and the states after them that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Literal, Protocol

from ramet.engine.making.lifetimes import now_ms
from ramet.errors import PointUnknown
from ramet.protocol.argument_errors import must
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.history import CODE_CHARACTERS
from ramet.protocol.values.specs import SandboxSpec

STEPS_AT_MOST = 200  # remembered in automatic mode
NEWEST_KEPT = 10  # states that are not thinned
_CODE_BYTES = 4 * CODE_CHARACTERS
_TOOL_NAMES = 50

THINNED = "it was dropped, because fewer points are kept the older they are"
AT_ONCE = "the next cell came before it could be kept"
NOT_YET = "it is kept when the sandbox has been idle for a moment"
KILLED = "its frozen process was killed, because memory was short"
ENDS_ITSELF = "its Python ends by itself soon after it is woken"
WRITTEN_SINCE = "files or values were written from outside after it was kept"


class State(Protocol):
    """A kept state. It is closed when the last of its holders has let go."""

    on_disk: bool

    def hold(self) -> None: ...
    async def let_go(self) -> None: ...


class TemplateState:
    """The state of a sandbox before its first cell. It takes no memory: the template makes it anew.

    ``spec``: of the sandbox then. It may be another sandbox's by now, of a snapshot that it was restored to.
    """

    on_disk = False

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec

    def hold(self) -> None: ...
    async def let_go(self) -> None: ...


@dataclass(frozen=True, slots=True)
class AskedOnTop:
    """Environment and folder given to a sandbox on top of a snapshot: its state is that of the snapshot with these.

    ``spec``: of the sandbox with all that, without its network.
    """

    environment: Mapping[str, str]
    cwd: str | None
    spec: SandboxSpec


Kind = Literal["start", "cell", "restore", "restart", "take"]


@dataclass(slots=True, eq=False)
class Step:
    """A cell, a restore, a restart or the beginning, and the state after it if that is kept. Owned by one past."""

    number: int
    kind: Kind
    cell_id: int = 0
    code: bytes = b""
    outcome: str = ""
    time_ms: int = 0
    tools: tuple[str, ...] = ()  # names that it called
    attempts: int = 0  # connections that its sandbox had tried when it ended
    state: State | None = None
    asked: AskedOnTop | None = None  # is not in the state yet
    order: int = 0  # of its state among all that were kept
    stale: bool = False  # the sandbox was changed from outside after the state was kept
    blank: bool = (
        False  # the memory after it is that of an empty Python: not worth the files that a recovery would undo
    )
    lost: bool = False  # its work is not part of the present state
    unkept: str = AT_ONCE  # why there is no state
    leaving: str = ""  # why memory has no room for the state: it is being written to disk, or waits for it
    changed_bytes: int | None = None
    in_pod: bool = False  # the frozen process is in the groups of the sandbox's present pod
    pause_seconds: float | None = None  # that the sandbox stood still for it
    memory_bytes: int = 0  # that the state takes, when it was last measured
    origin: object = field(default_factory=object)  # the same in all copies of this step

    @property
    def id(self) -> str:
        return f"p{self.number}"

    @property
    def exact(self) -> bool:
        """Whether the state after it is kept, as it was when the next step began."""
        return self.state is not None and not self.stale

    def where(self) -> str:
        """The state after it, in words."""
        if self.kind == "cell":
            return f"the state after cell {self.cell_id}"
        if self.kind == "restart":
            return "the state after its Python was started again"
        if self.kind == "take":
            return "the state after it took from another sandbox"
        return (
            "the state that it began with" if self.kind == "start" else "the state of the snapshot it was restored to"
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """The step that a sandbox is back at after its REPL has ended, and what is missing there."""

    step: Step
    lost: list[Step]  # whose work is missing
    written: bool  # files or values were written from outside since, and are missing

    @property
    def lost_cells(self) -> list[int]:
        return [step.cell_id for step in self.lost if step.kind == "cell"]


class Past:
    """The steps of one sandbox, the oldest first. Owned by the sandbox; ``release`` lets a state go that is dropped.

    ``wanted``: how many states are kept; None: the newest ones, and fewer the older they are; 0: no step is remembered.
    """

    def __init__(self, wanted: int | None) -> None:
        self.wanted = None if wanted is None else int(wanted)  # False is 0
        self.steps: list[Step] = []
        self.release: Callable[[State], None] = lambda _: None
        # Called with a state that memory has no room for. It may be written to disk: then it stays until it is.
        self.unload: Callable[[Step, str], object] = self.drop
        self._number = 0
        self._kept: set[Step] = set()  # a few of the steps: all sandboxes are asked for theirs again and again

    def __repr__(self) -> str:
        return f"<Past of {len(self.steps)} steps, {len(self.kept())} kept>"

    # Looking

    @property
    def last(self) -> Step | None:
        """The step whose work the present state ends with."""
        for step in reversed(self.steps):
            if not step.lost:
                return step
        return None

    def kept(self) -> list[Step]:
        return sorted(self._kept, key=lambda step: step.number)

    def find(self, point_id: str) -> Step:
        """The step of this id, whose state is kept. Raises PointUnknown."""
        for step in self.steps:
            if step.id == point_id:
                if step.state is None:
                    raise self._gone(f"the state of point {point_id} is not kept: {step.unkept}", step)
                return step
        raise PointUnknown(f"there is no point {point_id!r:.40} in the history of this sandbox")

    def before(self, count: int) -> Step:
        """The step that the sandbox is back at when the last ``count`` steps are undone. Its state is kept.

        Raises InvalidArgument if there are fewer, PointUnknown if that state is not kept.
        """
        present = [step for step in self.steps if not step.lost]
        if count >= len(present):
            at_most = max(len(present) - 1, 0)
            if not at_most:
                raise PointUnknown("there is nothing to undo: the sandbox has no earlier point")
            raise must("n", f"be at most {at_most}, the number of steps in its history", count)
        found = present[-1 - count]
        if not found.exact:
            why = WRITTEN_SINCE if found.state is not None else found.unkept
            raise self._gone(f"{found.where()} is not kept: {why}", found)
        return found

    def _gone(self, message: str, wanted: Step) -> PointUnknown:
        earlier = [step for step in self.kept() if step.number <= wanted.number]
        hint = "make the sandbox with history=N, which keeps the state before each of the last N cells"
        if earlier:
            nearest = earlier[-1]
            hint = f"the nearest kept point before it is {nearest.id}, {nearest.where()}: rewind to that; or {hint}"
        return PointUnknown(message, hint=hint, details={"nearest": earlier[-1].id if earlier else None})

    # Adding steps

    def begin(self, state: State, asked: AskedOnTop | None = None) -> None:
        """The first step."""
        if self.wanted == 0:
            return
        state.hold()
        blank = isinstance(state, TemplateState)
        self._add(Step(self._number, "start", time_ms=now_ms(), state=state, asked=asked, blank=blank))

    def add_cell(self, cell_id: int, code: bytes, outcome: str, tools: Iterable[str], attempts: int) -> Step:
        self._add(
            step := Step(
                self._number,
                "cell",
                cell_id,
                code[:_CODE_BYTES],
                outcome,
                now_ms(),
                tuple(tools)[:_TOOL_NAMES],
                attempts,
                lost=outcome == "died",
                unkept="its Python died in this cell" if outcome == "died" else AT_ONCE,
            )
        )
        return step

    def add_restore(self, state: State, attempts: int) -> None:
        """The sandbox was restored to a snapshot, which becomes a point of its own."""
        if self.wanted == 0:
            return
        state.hold()
        self._add(
            Step(self._number, "restore", time_ms=now_ms(), state=state, attempts=attempts, order=self._next_order())
        )
        self.thin()

    def add_take(self, told: str, attempts: int) -> None:
        """The sandbox has taken names or files from another."""
        if self.wanted != 0:
            code = told.encode("utf-8", "backslashreplace")[:_CODE_BYTES]
            self._add(Step(self._number, "take", code=code, outcome="ok", time_ms=now_ms(), attempts=attempts))

    def add_restart(self, attempts: int) -> None:
        """The REPL ended and was started again: its memory is empty, its files are as they were."""
        if self.wanted != 0:
            self._add(Step(self._number, "restart", time_ms=now_ms(), attempts=attempts, blank=True))

    def _add(self, step: Step) -> None:
        self._number += 1
        self.steps.append(step)
        if step.state is not None:
            self._kept.add(step)
        at_most = STEPS_AT_MOST if self.wanted is None else self.wanted + 1
        while len(self.steps) > at_most:
            # A cell that died has no state to offer: it must not push out one that has.
            lost = next((other for other in self.steps[:-1] if other.lost), None)
            if lost is None and step.lost:
                break
            gone = lost or self.steps[0]
            self.steps.remove(gone)
            self._let_go(gone)

    def keep(self, step: Step, state: State, stale: bool = False) -> None:
        """The caller's hold on the state becomes the step's. ``stale``: the sandbox was changed meanwhile."""
        if step.state is None:
            step.order = self._next_order()
        self._let_go(step)
        step.state, step.asked, step.stale = state, None, stale
        self._kept.add(step)
        self.thin()

    # Dropping states

    def thin(self) -> None:
        """Keep the newest states in memory; of older ones every second, of still older ones every fourth, and so on."""
        if self.wanted is not None:
            return
        # States, not steps: of cells that follow one another at once hardly any is kept.
        spacing, until = 1, NEWEST_KEPT
        newest = self._next_order() - 1
        for step in reversed(self.kept()):
            while newest - step.order >= until:
                spacing, until = spacing * 2, until * 2
            if step.order % spacing and step.state is not None and not step.state.on_disk and not step.leaving:
                self.unload(step, THINNED)

    def _next_order(self) -> int:
        return max((step.order + 1 for step in self.kept()), default=0)

    def drop(self, step: Step, why: str) -> None:
        self._let_go(step)
        step.unkept = why

    def exchange(self, step: Step, state: State) -> None:
        """The same state in another form. The caller's hold on it becomes the step's."""
        self._let_go(step)
        step.state = state
        self._kept.add(step)

    def truncate(self, step: Step) -> list[Step]:
        """The sandbox is back at a step: those after it are gone. Returns them."""
        place = self.steps.index(step) + 1
        gone, self.steps = self.steps[place:], self.steps[:place]
        for later in gone:
            self._let_go(later)
        step.stale = step.lost = False
        return gone

    def written_since(self, step: Step) -> bool:
        """Whether a return to the state of a step takes back what was written from outside."""
        return any(later.stale and not later.lost for later in self.steps[self.steps.index(step) :])

    def lose(self, step: Step) -> list[Step]:
        """The sandbox was restored to a step: the work of those after it is lost, but they are still shown."""
        place = self.steps.index(step) + 1
        lost = [later for later in self.steps[place:] if not later.lost]
        for later in self.steps[place:]:
            later.lost = True
            if later.state is not None:
                self.drop(later, "its work was lost when the sandbox was restored to an earlier point")
        step.stale = False
        return lost

    def _let_go(self, step: Step) -> None:
        if step.state is not None:
            self.release(step.state)
            step.state, step.memory_bytes, step.in_pod, step.leaving = None, 0, False, ""
            self._kept.discard(step)

    # Copies

    def copy(self, until: Step | None = None, wanted: int | None = None) -> Past:
        """The past of a copy of the sandbox, as of now or of a step. It holds the same states."""
        past = Past(wanted)
        past.release = self.release
        place = 0 if wanted == 0 else len(self.steps) if until is None else self.steps.index(until) + 1
        # The copy has a network of its own, which has tried nothing yet.
        past.steps = [replace(step, attempts=0, in_pod=False, leaving="") for step in self.steps[:place]]
        past._number = past.steps[-1].number + 1 if past.steps else 0
        for step in past.steps:
            if step.state is not None:
                step.state.hold()
                past._kept.add(step)
        return past

    def joined_by(self, winner: Past) -> Past:
        """The past of the sandbox when it goes on as another: the other's. No id names another state than before."""
        past = winner.copy(wanted=self.wanted)
        known = {step.origin for step in self.steps}
        shared = max((place for place, step in enumerate(past.steps, 1) if step.origin in known), default=0)
        own = past.steps[shared:]
        past._number = max(self._number, winner._number)
        if own and own[0].number < self._number:
            for step in own:
                step.number = past._number
                past._number += 1
        if not past.steps and past.wanted != 0:
            past._add(Step(past._number, "start", time_ms=now_ms()))
        return past

    @classmethod
    def remembered(cls, wanted: int | None, steps: Iterable[Step]) -> Past:
        """A past that was written down. None of its states is kept."""
        past = cls(wanted)
        if past.wanted != 0:
            past.steps = [replace(step, state=None) for step in steps]
            past._number = max((step.number + 1 for step in past.steps), default=0)
        return past

    async def close(self) -> None:
        """Let everything go."""
        await asyncio.gather(*(state.let_go() for state in self.take_states()), return_exceptions=True)

    def take_states(self) -> list[State]:
        """The states that the caller has to let go: nothing is kept any more."""
        taken = [step.state for step in self.kept() if step.state is not None]
        for step in self.kept():
            step.state = None
        self._kept.clear()
        return taken
