"""Random cells, undo, rewind, restore, take, forks, sleep, deaths of the REPL and of the engine, compared with a model.

A persistent sandbox may lose what it did since its last image, and nothing else: after the death of its engine it is in
one of the states that it had since the last moment that is surely on disk, whole, and names the cells that are missing.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass, field

from ramet import ForkFailed, RametError, Sandbox
from tests.processes import descendants

_HISTORY = 20
_NAMES = ("a", "b", "c")
_LOOK = "look()"
# A thread that works all the time: it must go on after whatever happens.
_BEGIN = """
import os, threading, time
beats = 0
def look():
    names = {n: globals()[n] for n in "abc" if n in globals()}
    files = {n: open("/root/" + n).read() for n in "abc" if os.path.exists("/root/" + n)}
    before = beats
    while beats == before:
        time.sleep(0.001)
    print((names, files), end="")
def beat():
    global beats
    while True:
        beats += 1
        time.sleep(0.001)
threading.Thread(target=beat, daemon=True).start()
"""


@dataclass(frozen=True)
class KnownState:
    """What the sandbox was at one moment. ``cells``: how many cells had been begun until then."""

    names: tuple[tuple[str, int], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    cells: int = 0

    def told(self) -> str:
        return repr((dict(sorted(self.names)), dict(sorted(self.files))))


@dataclass
class Survivor:
    """A persistent sandbox, and every state that it may be found in when its engine has died."""

    real: Sandbox
    random: random.Random
    state: KnownState = field(default_factory=KnownState)
    points: dict[str, KnownState] = field(default_factory=dict)
    possible: list[KnownState] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def run(self, code: str) -> str:
        """A cell, which may be missing later. Its code is unlike all others."""
        code += f"  # {len(self.codes)}"
        self.codes.append(code)
        result = self.real.run_code(code, timeout=60)
        assert result.state != "restored", (result, self.done)
        return result.stdout

    def became(self, names: dict[str, int], files: dict[str, str]) -> None:
        self.state = KnownState(tuple(sorted(names.items())), tuple(sorted(files.items())), len(self.codes))
        self.possible.append(self.state)
        self.points[self.real.history()[-1].id] = self.state

    def check(self) -> None:
        assert self.run(_LOOK) == self.state.told(), self.done
        self.became(dict(self.state.names), dict(self.state.files))

    # What may happen

    def assign(self) -> None:
        name, number = self.random.choice(_NAMES), self.random.randrange(1000)
        self.run(f"{name} = {number}")
        self.became({**dict(self.state.names), name: number}, dict(self.state.files))

    def write(self) -> None:
        name, text = self.random.choice(_NAMES), str(self.random.randrange(1000))
        self.run(f"_ = open('/root/{name}', 'w').write('{text}')")
        self.became(dict(self.state.names), {**dict(self.state.files), name: text})

    def undo(self) -> None:
        kept = [point for point in self.real.history() if point.kept and point.id in self.points]
        if len(kept) > 1:
            chosen = self.random.choice(kept[:-1])
            self.real.rewind(chosen.id)
            known = self.points[chosen.id]
            self.state = KnownState(known.names, known.files, len(self.codes))
            self.possible.append(self.state)

    def fork(self) -> None:
        try:
            child = self.real.fork()[0]
        except ForkFailed as error:
            raise AssertionError(self.done) from error
        with child:
            assert child.run_code(_LOOK).stdout == self.state.told(), self.done
            child.run_code("a = b = c = -1; _ = open('/root/a', 'w').write('of a child')")

    def take(self) -> None:
        """A variable and a file of a child come into it."""
        name, number = self.random.choice(_NAMES), self.random.randrange(1000)
        with self.real.fork()[0] as child:
            child.run_code(f"{name} = {number}; _ = open('/root/{name}', 'w').write('{number}')")
            self.real.take(child, names=[name], files=[f"/root/{name}"])
        self.became({**dict(self.state.names), name: number}, {**dict(self.state.files), name: str(number)})

    def restore(self) -> None:
        """It goes back to a snapshot, after something else was done."""
        with self.real.snapshot() as snapshot:
            before = self.state
            self.run("a = b = -1")
            self.became({**dict(before.names), "a": -1, "b": -1}, dict(before.files))
            self.real.restore(snapshot)
        self.became(dict(before.names), dict(before.files))

    def sleep(self) -> None:
        self.real.hibernate()
        self.possible = [self.state]  # this one is on disk, and none before it can come back

    def die(self) -> None:
        """The REPL dies. What is kept of its history is its state again."""
        code = f"import os; os._exit(3)  # {len(self.codes)}"
        self.codes.append(code)
        result = self.real.run_code(code, timeout=60)
        assert result.state == "restored", (result, self.done)
        self.state = KnownState(self.state.names, self.state.files, len(self.codes))
        self.possible.append(self.state)

    def kill_engine(self) -> None:
        sandbox_id = self.real.id
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            self.real.run_code("1")
            raise AssertionError("the engine lives")
        except RametError:
            pass
        self.real = Sandbox.resume(sandbox_id)
        missing = [cell.code for cell in self.real.missing_cells]
        told = self.real.run_code(_LOOK, timeout=60).stdout
        fitting = [one for one in self.possible if one.told() == told]
        assert fitting, (told, self.possible, self.done)
        found = [one for one in fitting if missing == self.codes[one.cells :]]
        assert found, (missing, fitting, self.codes, self.done)
        self.codes.append(_LOOK)
        self.state = KnownState(found[-1].names, found[-1].files, len(self.codes))
        self.points.clear()
        # Until its next image it may come back at the same state again, and names all that is missing since then.
        self.possible = [*found, self.state]

    def step(self) -> None:
        changes = (self.assign, self.assign, self.write, self.take)
        returns = (self.undo, self.restore, self.die, self.kill_engine)
        actions = (*changes, *returns, self.fork, self.sleep)
        action = self.random.choice(actions)
        self.done.append(action.__name__)
        action()
        self.check()


def run(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    seconds = chance.choice((0.05, 0.3, 5.0))
    with Sandbox(persistent=True, history=_HISTORY, checkpoint_seconds=seconds) as real:
        survivor = Survivor(real, chance)
        survivor.run(_BEGIN)
        survivor.became({}, {})
        survivor.sleep()  # from here on it has a state on disk
        for _ in range(steps):
            survivor.step()
        survivor.real.close()
        again = Sandbox.resume(survivor.real.id)
        assert (again.run_code(_LOOK).stdout, again.missing_cells) == (survivor.state.told(), ()), survivor.done
        again.close()
        Sandbox.discard(again.id)
    print("survived", len(survivor.done))
