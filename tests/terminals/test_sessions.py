"""How terminals end, and what forks, restores and merges make of them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet import LimitReached, RametError, Sandbox
from ramet.transport import embedded
from tests.behaviour.waiting import wait_until
from tests.conftest import Neighbour
from tests.processes import command_line, descendants, descriptor_count
from tests.terminals.conftest import OpenScreen
from tests.terminals.screens import Screen
from tests.walls.family import engine_of

_STUBBORN = "trap '' HUP TERM INT; echo ready; while :; do sleep 1001; done"


def programs(sandbox: Sandbox) -> list[str]:
    """All that runs in a sandbox but its REPL and whoever asks."""
    code = """
import os
found = []
for name in filter(str.isdigit, os.listdir('/proc')):
    try:
        line = open(f'/proc/{name}/cmdline').read().replace(chr(0), ' ').strip()
        state = open(f'/proc/{name}/stat').read().rpartition(')')[2].split()[0]
    except OSError:
        continue
    if int(name) not in (1, os.getpid()) and state not in 'ZX':
        found.append(line)
print(*sorted(found), sep='\\n')
"""
    return sandbox.run_code(code).stdout.split("\n")[:-1]


def engine_processes(marker: bytes) -> list[int]:
    """Of the engine, as the host sees them."""
    return [pid for pid in descendants(embedded.default_engine().pid) if marker in command_line(pid)]


def test_a_hang_up_ends_who_listens_to_it(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal(["sleep", "1002"])
    terminal.kill()
    assert terminal.wait() == 129
    terminal.kill()
    assert programs(sandbox) in ([], [""])


def test_who_ignores_the_hang_up_is_killed(screen_of: OpenScreen, sandbox: Sandbox) -> None:
    screen = screen_of(_STUBBORN)
    screen.wait_for("ready")
    screen.terminal.kill()
    assert screen.terminal.wait() == 137
    assert "sleep 1001" not in programs(sandbox)


def test_all_of_the_session_is_ended(screen_of: OpenScreen, sandbox: Sandbox) -> None:
    """Jobs in the background, stopped ones, ones in process groups of their own."""
    screen = screen_of(["bash", "--norc", "--noediting"], env={"PS1": "$ "})
    screen.run("set -m; trap '' HUP; sleep 1003 & (sleep 1004 & sleep 1005) & true")
    wait_until(lambda: sum("sleep" in line for line in programs(sandbox)) >= 3, "all of them run")
    screen.run("kill -STOP %1")
    screen.terminal.kill()
    assert [line for line in programs(sandbox) if "sleep" in line] == []


def test_other_terminals_and_the_repl_go_on(screen_of: OpenScreen, sandbox: Sandbox) -> None:
    sandbox.run_code("x = 6")
    one = screen_of(["bash", "--norc", "--noediting"], env={"PS1": "$ "})
    other = screen_of(_STUBBORN)
    other.wait_for("ready")
    other.terminal.kill()
    assert one.run("echo here") == "here\n"
    assert sandbox.run_code("x * 7").value == "42"


def test_a_fork_bomb_in_a_terminal_can_be_ended(neighbour: Neighbour) -> None:
    with Sandbox(pids=100) as sandbox:
        screen = Screen(sandbox.terminal("bomb() { bomb | bomb & }; bomb; while :; do sleep 1006; done"))
        screen.wait_for("Resource temporarily unavailable")
        screen.terminal.kill()
        assert screen.terminal.wait() in (129, 137, 254)
        screen.wait_until_over()
        assert sandbox.run_code("6 * 7").value == "42"
        assert programs(sandbox) in ([], [""])
    neighbour.assert_unharmed()


def test_closing_the_sandbox_ends_everything(neighbour: Neighbour) -> None:
    with Sandbox() as sandbox:
        screens = [
            Screen(sandbox.terminal("trap '' HUP; echo ready; setsid sleep 4321 & exec sleep 4321")) for _ in range(3)
        ]
        for screen in screens:
            screen.wait_for("ready")
        wait_until(lambda: len(engine_processes(b"sleep\x004321")) == 6, "all of them run")
    assert engine_processes(b"sleep\x004321") == []
    for screen in screens:
        screen.close()
    neighbour.assert_unharmed()


def test_nothing_is_left_of_ended_terminals(sandbox: Sandbox) -> None:
    """No descriptor of the engine, no zombie, nobody in the groups."""
    sandbox.terminal("exit 0").wait()
    engine = engine_of(embedded.default_engine().pid)
    before = descriptor_count(engine)
    for _ in range(30):
        assert sandbox.terminal("exit 0").wait() == 0
        with pytest.raises(RametError):
            sandbox.terminal("no-such-program")
    wait_until(lambda: descriptor_count(engine) <= before + 2, "descriptors are closed again")
    assert [pid for pid in descendants(engine) if command_line(pid).endswith(b"exit 0\x00")] == []


def test_a_fork_leaves_the_parents_terminals_alone(shell: Screen, screen_of: OpenScreen, sandbox: Sandbox) -> None:
    """One runs a program that sleeps, one is in the middle of a screen, one waits for input."""
    sandbox.run_code("x = 6")
    sleeping = screen_of("echo asleep; exec sleep 1007")
    editing = screen_of(
        ["python3", "-c", "import tty, os; tty.setraw(0); os.write(1, b'edit'); os.write(1, os.read(0, 9))"]
    )
    sleeping.wait_for("asleep")
    editing.wait_for("edit")
    for _ in range(3):
        with sandbox.fork(2) as children:
            for child in children:
                assert child.run_code("x * 7").value == "42"
                assert child.terminals() == []
                assert programs(child) in ([], [""])
                assert b"".join(child.terminal("tty").read()) == b"/dev/pts/0\r\n"
    assert shell.run("echo alive") == "alive\n"
    assert "sleep 1007" in programs(sandbox)
    editing.type(b"typed")
    assert editing.wait_until_over() == b"edittyped"
    assert [found.exit_code for found in sandbox.terminals()] == [None, None, 0]


def test_a_terminal_that_ends_during_a_fork_is_told(sandbox: Sandbox) -> None:
    for number in range(10):
        terminal = sandbox.terminal(f"read line; exit {number}")
        with ThreadPoolExecutor(1) as threads:
            forking = threads.submit(sandbox.fork, 1)
            terminal.write("\n")
            (child,) = forking.result(60)
        assert terminal.wait() == number
        child.close()


@pytest.mark.deep("load")
def test_forks_and_new_terminals_at_the_same_time(sandbox: Sandbox, neighbour: Neighbour) -> None:
    over = threading.Event()

    def open_and_end() -> int:
        count = 0
        while not over.is_set():
            assert sandbox.terminal(f"exit {count % 100}").wait() == count % 100
            count += 1
        return count

    with ThreadPoolExecutor(3) as threads:
        opening = [threads.submit(open_and_end) for _ in range(3)]
        try:
            for _ in range(10):
                with sandbox.fork(2) as children:
                    assert [child.run_code("6 * 7").value for child in children] == ["42", "42"]
        finally:
            over.set()
        assert sum(done.result(60) for done in opening) > 0
    neighbour.assert_unharmed()


def test_a_restore_ends_them(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    with sandbox.snapshot() as snapshot:
        terminal = Screen(sandbox.terminal("echo before; exec sleep 1008"))
        terminal.wait_for("before")
        sandbox.restore(snapshot)
    terminal.wait_until_over()
    assert sandbox.terminals() == []
    assert programs(sandbox) in ([], [""])
    assert sandbox.terminal("exit 4").wait() == 4


def test_a_merge_ends_those_of_both(sandbox: Sandbox) -> None:
    (child,) = sandbox.fork(1)
    ours, theirs = Screen(sandbox.terminal("sleep 1009")), Screen(child.terminal("trap '' HUP; sleep 1010"))
    sandbox.merge_into(child)
    ours.wait_until_over()
    theirs.wait_until_over()
    assert sandbox.terminals() == []
    wait_until(lambda: not any("sleep" in line for line in programs(sandbox)), "nothing of the terminals is left")


def test_a_cell_that_has_a_terminal_of_ours_open_can_be_forked(shell: Screen, sandbox: Sandbox) -> None:
    sandbox.run_code("import os; held = os.open('/dev/pts/0', os.O_RDWR | os.O_NOCTTY); x = 6")
    with sandbox.fork(1) as children:
        assert children[0].run_code("x * 7").value == "42"
    assert shell.run("echo alive") == "alive\n"


def test_sixteen_can_be_opened_at_once(sandbox: Sandbox) -> None:
    def try_to_open(_: int) -> bool:
        try:
            return bool(sandbox.terminal(["sleep", "1011"]))
        except LimitReached:
            return False

    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(try_to_open, range(20))) == 16
    assert programs(sandbox).count("sleep 1011") == 16


def test_who_leaves_the_session_stays_until_the_sandbox_is_closed(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal("setsid sleep 1012 & echo left; sleep 0.1; read line")
    next(terminal.read())
    wait_until(lambda: "sleep 1012" in programs(sandbox), "it runs")
    terminal.kill()
    assert "sleep 1012" in programs(sandbox)
    marker = b"sleep\x001012"
    assert len(engine_processes(marker)) == 1
    sandbox.close()
    assert engine_processes(marker) == []


def test_an_engine_that_is_closed_takes_its_terminals_along() -> None:
    engine = embedded.default_engine()
    sandbox = Sandbox()
    terminal = Screen(sandbox.terminal("trap '' HUP; echo ready; exec sleep 8765"))
    terminal.wait_for("ready")
    # The shell says "ready" before it becomes the program.
    wait_until(lambda: len(engine_processes(b"sleep\x008765")) == 1, "the program runs")
    pids = engine_processes(b"sleep\x008765")
    embedded.close_engine()
    terminal.close()
    wait_until(lambda: not os.path.exists(f"/proc/{pids[0]}"), "the program is gone")
    assert not engine.running
