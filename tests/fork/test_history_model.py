"""Random cells, undo, rewind, forks at points and deaths of the REPL, compared with a model after each step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import pytest

from ramet import PointUnknown, Sandbox
from ramet.transport import embedded
from tests.fork.belongings import assert_leaves_nothing

HISTORY = 30
_NAMES = ("a", "b", "c", "d")
_LOOK = (
    "import os\n"
    "print(({n: globals()[n] for n in 'abcd' if n in globals()}, "
    "{n: open('/root/' + n).read() for n in 'abcd' if os.path.exists('/root/' + n)}), end='')"
)
_DEATHS = ("os._exit(3)", "os.kill(os.getpid(), 9)", "import ctypes; ctypes.string_at(0)")


@dataclass(frozen=True)
class ModelState:
    """The variables and the files of a sandbox."""

    names: tuple[tuple[str, int], ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    def told(self) -> str:
        return repr((dict(sorted(self.names)), dict(sorted(self.files))))


@dataclass
class ModelStep:
    id: str
    state: ModelState
    lost: bool = False


@dataclass
class RememberingPair:
    """A sandbox and what it should be. ``steps`` is its whole past, as far as it is remembered."""

    real: Sandbox
    steps: list[ModelStep] = field(default_factory=lambda: [ModelStep("p0", ModelState())])
    number: int = 1

    def add(self, state: ModelState, lost: bool = False) -> None:
        self.steps = [*self.steps, ModelStep(f"p{self.number}", state, lost)][-HISTORY - 1 :]
        self.number += 1

    @property
    def present(self) -> list[ModelStep]:
        return [step for step in self.steps if not step.lost]

    @property
    def state(self) -> ModelState:
        return self.present[-1].state

    def truncate(self, step: ModelStep) -> None:
        self.steps = self.steps[: self.steps.index(step) + 1]

    def check(self) -> None:
        """By a cell, which is a step itself."""
        result = self.real.run_code(_LOOK, timeout=60)
        assert (result.stdout, result.restarted, result.restored) == (self.state.told(), False, False), result
        self.add(self.state)
        points = self.real.history()
        assert [(point.id, point.lost) for point in points] == [(step.id, step.lost) for step in self.steps]


class RandomPasts:
    """Sandboxes that are changed at random, each with its model."""

    def __init__(self, seed: int, stack: ExitStack, may_lose_points: bool) -> None:
        self._random = random.Random(seed)
        self._stack = stack
        self.may_lose_points = may_lose_points
        self.pairs = [RememberingPair(stack.enter_context(Sandbox(history=HISTORY)))]

    def step(self) -> None:
        pair = self._random.choice(self.pairs)
        action = self._random.choice(
            (self.assign, self.write, self.remove, self.undo, self.rewind, self.fork, self.die)
        )
        action(pair)
        pair.check()

    def assign(self, pair: RememberingPair) -> None:
        name, number = self._random.choice(_NAMES), self._random.randrange(1000)
        assert pair.real.run_code(f"{name} = {number}", timeout=60).ok
        names = {**dict(pair.state.names), name: number}
        pair.add(ModelState(tuple(names.items()), pair.state.files))

    def write(self, pair: RememberingPair) -> None:
        name, text = self._random.choice(_NAMES), str(self._random.randrange(1000))
        files = tuple({**dict(pair.state.files), name: text}.items())
        if self._random.random() < 0.3:  # from outside: part of the state before the next cell
            pair.real.files.write(f"/root/{name}", text)
            pair.present[-1].state = ModelState(pair.state.names, files)
        else:
            assert pair.real.run_code(f"_ = open('/root/{name}', 'w').write('{text}')", timeout=60).ok
            pair.add(ModelState(pair.state.names, files))

    def remove(self, pair: RememberingPair) -> None:
        names, files = dict(pair.state.names), dict(pair.state.files)
        name = self._random.choice(_NAMES)
        names.pop(name, None)
        files.pop(name, None)
        code = f"import os; globals().pop('{name}', None); print(os.system('rm -f /root/{name}'), end='')"
        result = pair.real.run_code(code, timeout=60)
        assert result.stdout == "0", result
        pair.add(ModelState(tuple(names.items()), tuple(files.items())))

    def undo(self, pair: RememberingPair) -> None:
        if len(pair.present) > 1:
            count = self._random.randint(1, min(5, len(pair.present) - 1))
            target = pair.present[-1 - count]
            try:
                assert pair.real.undo(count).point.id == target.id
            except PointUnknown:
                # Where memory gives states up faster than the disk takes them, some are not kept, and history says so.
                assert target.id not in {point.id for point in pair.real.history() if point.kept}
                assert self.may_lose_points
                return
            pair.truncate(target)

    def rewind(self, pair: RememberingPair) -> None:
        points = [point.id for point in pair.real.history() if point.kept]
        chosen = self._random.choice(points[:-1] or points)
        target = next(step for step in pair.steps if step.id == chosen)
        pair.real.rewind(target.id)
        pair.truncate(target)

    def fork(self, pair: RememberingPair) -> None:
        others = [other for other in self.pairs[1:] if other is not pair]
        if len(self.pairs) > 3:
            gone = self._random.choice(others)
            gone.real.close()
            self.pairs = [other for other in self.pairs if other is not gone]
        points = [point.id for point in pair.real.history() if point.kept]
        target = self._random.choice(points)
        child = pair.real.fork(at=target)[0]
        self._stack.callback(child.close)
        place = [step.id for step in pair.steps].index(target)
        steps = [ModelStep(step.id, step.state, step.lost) for step in pair.steps[: place + 1]]
        self.pairs.append(RememberingPair(child, steps, int(target[1:]) + 1))
        self.pairs[-1].check()

    def die(self, pair: RememberingPair) -> None:
        # The state before the cell is kept, because its history asks for that; the first one takes no memory, so there
        # is nothing to restore.
        if len(pair.present) < 2:
            return
        result = pair.real.run_code(f"import os; a = -1; {self._random.choice(_DEATHS)}", timeout=60)
        assert result.state == "restored", result
        points = pair.real.history()
        told = [(point.id, point.kept, point.lost, point.note) for point in points]
        assert [point.id for point in points if not point.lost][-1] == pair.present[-1].id, (told, result.stderr)
        pair.add(ModelState(), lost=True)


def _run(seed: int, steps: int) -> int:
    """Gives the number of sandboxes at the end."""
    with ExitStack() as stack:
        pasts = RandomPasts(seed, stack, "--history-memory-mib" in embedded.engine_options)
        for _ in range(steps):
            pasts.step()
        return len(pasts.pairs)


@pytest.fixture
def no_memory_for_points() -> Iterator[None]:
    """An engine of its own, whose histories are on disk as soon as they can be."""
    before = list(embedded.engine_options)
    embedded.close_engine()
    embedded.engine_options += ["--history-memory-mib", "0"]
    yield
    embedded.close_engine()
    embedded.engine_options[:] = before


def test_a_sandbox_is_as_its_model_after_a_few_random_steps() -> None:
    assert _run(1, 25) >= 1


@pytest.mark.deep("fuzz")
@pytest.mark.parametrize("seed", range(2, 8))
def test_sandboxes_are_as_their_models_after_many_random_steps_and_leave_nothing(seed: int) -> None:
    assert_leaves_nothing(partial(_run, seed, 150))


@pytest.mark.usefixtures("no_memory_for_points")
def test_a_sandbox_whose_points_are_on_disk_is_as_its_model() -> None:
    assert _run(1, 10) >= 1


@pytest.mark.deep("fuzz")
@pytest.mark.usefixtures("no_memory_for_points")
@pytest.mark.parametrize("seed", range(8, 12))
def test_sandboxes_whose_points_are_on_disk_are_as_their_models_and_leave_nothing(seed: int) -> None:
    assert_leaves_nothing(partial(_run, seed, 100))
