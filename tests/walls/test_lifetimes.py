"""Whoever dies, and however: no process, mount, control group or temporary file is left."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramet import EngineLost, RametError, Sandbox, close_engine
from ramet.transport import embedded
from tests.processes import command_line
from tests.walls.engines import fresh_engine
from tests.walls.family import alive, below, engine_of

_BOUND_SECONDS = 20

_OWNER = """
import sys
from ramet import Sandbox
from ramet.transport import embedded
sandboxes = [Sandbox() for _ in range(3)]
sandboxes[0].run_code("import subprocess; child = subprocess.Popen(['sleep', '1000'])")
sandboxes[1].run_code("open('/tmp/file', 'w').write('x' * 100000)")
print(embedded.default_engine().pid, flush=True)
command = sys.stdin.readline().strip()
if command == "run":
    print("running", flush=True)
    sandboxes[2].run_code("while True: pass")
elif command == "exit":
    sys.exit(0)
elif command == "abort":
    import os
    os.abort()
"""


@dataclass(frozen=True)
class Owner:
    """Another process that owns an engine, with everything below it as it was when it was ready."""

    process: subprocess.Popen[str]
    launcher: int
    family: frozenset[tuple[int, str]]
    temporary: Path

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _BOUND_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited {_BOUND_SECONDS} s in vain until {what}"
        time.sleep(0.01)


def groups_of(owner: int) -> list[str]:
    return [
        path for depth in ("*", "*/*", "*/*/*") for path in glob.glob(f"/sys/fs/cgroup/{depth}/ramet-{owner}-*")
    ] + glob.glob(f"/sys/fs/cgroup/ramet-{owner}-*")


def mounts() -> list[str]:
    return sorted(line.split(" ", 3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines())


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        launcher = int(process.stdout.readline())
        yield Owner(process, launcher, frozenset(below(launcher)), tmp_path)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def assert_nothing_is_left(owner: Owner, mounts_before: list[str]) -> None:
    pid = owner.process.pid
    wait_until(
        lambda: not alive(owner.family), f"no process of {sorted(owner.family)} is left, but {alive(owner.family)}"
    )
    wait_until(lambda: not groups_of(pid), f"no control group is left, but {groups_of(pid)}")
    assert mounts() == mounts_before
    assert list(owner.temporary.iterdir()) == []
    assert [name for name in os.listdir("/dev/shm") if "ramet" in name] == []


def test_an_owner_has_a_family_and_groups_while_it_lives(owner: Owner) -> None:
    """Else the tests below prove nothing."""
    assert len(owner.family) > 8
    assert alive(owner.family) == {pid for pid, _ in owner.family}
    assert groups_of(owner.process.pid) or os.geteuid() != 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT, signal.SIGHUP])
def test_an_owner_that_is_killed_leaves_nothing(owner: Owner, number: signal.Signals) -> None:
    before = mounts()
    owner.process.stderr = None
    os.kill(owner.process.pid, number)
    owner.process.wait(_BOUND_SECONDS)
    assert_nothing_is_left(owner, before)


def test_an_owner_that_is_killed_in_the_middle_of_a_cell_leaves_nothing(owner: Owner) -> None:
    before = mounts()
    owner.say("run")
    assert owner.process.stdout is not None
    assert owner.process.stdout.readline() == "running\n"
    owner.process.kill()
    owner.process.wait(_BOUND_SECONDS)
    assert_nothing_is_left(owner, before)


@pytest.mark.parametrize("word", ["exit", "abort", ""])
def test_an_owner_that_ends_leaves_nothing(owner: Owner, word: str) -> None:
    before = mounts()
    owner.say(word)
    owner.process.wait(_BOUND_SECONDS)
    assert_nothing_is_left(owner, before)


@pytest.mark.deep("restarts")
def test_owner_and_launcher_killed_at_once_leave_no_process_and_the_next_engine_sweeps(owner: Owner) -> None:
    before = mounts()
    os.kill(owner.launcher, signal.SIGKILL)
    os.kill(owner.process.pid, signal.SIGKILL)
    owner.process.wait(_BOUND_SECONDS)
    wait_until(lambda: not alive(owner.family), "no process is left")
    with fresh_engine():
        assert_nothing_is_left(owner, before)


def test_a_stopped_owner_keeps_its_sandboxes(owner: Owner) -> None:
    os.kill(owner.process.pid, signal.SIGSTOP)
    os.kill(owner.process.pid, signal.SIGCONT)
    assert alive(owner.family) == {pid for pid, _ in owner.family}


# The engine of this process


@pytest.mark.promise("survive-engine")
@pytest.mark.parametrize(
    ("who", "number"), [("engine", signal.SIGKILL), ("launcher", signal.SIGKILL), ("launcher", signal.SIGSEGV)]
)
def test_a_lost_engine_is_told_leaves_nothing_and_is_replaced(who: str, number: signal.Signals) -> None:
    before = mounts()
    with fresh_engine() as engine:
        groups_before = set(groups_of(os.getpid()))
        sandbox = Sandbox()
        family = frozenset(below(engine.pid))
        os.kill(engine_of(engine.pid) if who == "engine" else engine.pid, number)
        wait_until(lambda: not alive(family), "no process of the engine is left")
        with pytest.raises(EngineLost) as lost:
            sandbox.run_code("1")
        assert f"process {engine.pid}" in lost.value.message
        assert mounts() == before
        with Sandbox() as next_one:
            assert next_one.run_code("6 * 7").value == "42"
            assert embedded.default_engine() is not engine
        with pytest.raises(EngineLost):
            sandbox.run_code("1")
        close_engine()
        left = set(groups_of(os.getpid())) & groups_before - shared_groups()
        assert left == set()
        sandbox.close()


def shared_groups() -> set[str]:
    """Those of the engine that other tests of this process share: somebody is in them."""
    doors = [
        door for path in groups_of(os.getpid()) for name in ("tasks", "cgroup.procs") for door in Path(path).rglob(name)
    ]
    inhabited = [str(door) for door in doors if door.read_text()]
    return {path for path in groups_of(os.getpid()) if any(door.startswith(f"{path}/") for door in inhabited)}


def test_a_call_in_progress_is_told_that_the_engine_is_lost() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with fresh_engine() as engine, ThreadPoolExecutor(1) as threads:
        sandbox = Sandbox()
        events = sandbox.run_code_stream("print('begun', flush=True)\nwhile True: pass")
        assert next(iter(events)).type == "stdout"
        rest = threads.submit(lambda: list(events))
        os.kill(engine_of(engine.pid), signal.SIGKILL)
        with pytest.raises(EngineLost):
            rest.result(_BOUND_SECONDS)
        sandbox.close()


def test_a_closed_sandbox_leaves_nothing_while_its_engine_goes_on() -> None:
    with fresh_engine() as engine:
        with Sandbox(memory_mib=300) as sandbox:
            sandbox.run_code("import subprocess; child = subprocess.Popen(['sleep', '1000'])")
            sleepers = {known for known in below(engine.pid) if b"sleep\x001000" in command_line(known[0])}
            assert len(sleepers) == 1
        wait_until(lambda: not alive(frozenset(sleepers)), "its processes are gone")
        assert engine.running


@pytest.mark.deep("load")
def test_many_lives_leave_no_process_behind() -> None:
    """Sandboxes that were closed, lost and revived: afterwards the engine has as many processes as before."""
    with fresh_engine() as engine:

        def settle() -> int:
            """The number of processes once the pool has refilled itself: it stays the same for a while."""
            counts: list[int] = []

            def steady() -> bool:
                counts.append(len(below(engine.pid)))
                return len(counts) > 20 and len(set(counts[-20:])) == 1

            wait_until(steady, "the engine is at rest")
            return counts[-1]

        before = settle()
        for _ in range(5):
            with Sandbox() as sandbox:
                for _ in range(3):
                    with pytest.raises(AssertionError):
                        assert sandbox.run_code("import os; os._exit(1)").ok
        wait_until(lambda: settle() <= before, f"the engine has its {before} processes again")


def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "engine_options", ["--no-such-option"])
    before_groups, before = set(groups_of(os.getpid())), mounts()
    monkeypatch.setattr(embedded, "_default", None)
    with pytest.raises(RametError, match="no-such-option"):
        Sandbox()
    wait_until(lambda: set(groups_of(os.getpid())) <= before_groups, "its control groups are gone")
    assert mounts() == before
