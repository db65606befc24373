"""A terminal is opened from outside, in a place that is hostile: its files, its processes, its limits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet import LimitReached, RametError, Sandbox, SandboxLost
from ramet.transport import embedded
from tests.behaviour.waiting import wait_until
from tests.conftest import Neighbour
from tests.processes import command_line, descendants
from tests.terminals.screens import Screen
from tests.walls.attempts import armed, value

# Four processes that look at every new process of the sandbox and do something to those that are still our helper.
_LURK = """
import os, signal, time
def lurk(act):
    for _ in range(4):
        if os.fork():
            continue
        os.setsid()
        seen = set()
        with open(f'/root/found-{os.getpid()}', 'a') as log:
            while not os.path.exists('/root/stop'):
                for name in os.listdir('/proc'):
                    if not name.isdigit() or name in seen:
                        continue
                    try:
                        if open(f'/proc/{name}/comm').read() == 'ramet-pod\\n' and name != '1':
                            log.write(f'met {name}\\n')
                            act(name, log)
                            log.flush()
                        else:
                            seen.add(name)
                    except OSError:
                        pass
                if len(seen) > 5000: seen.clear()
        os._exit(0)
"""
_LOOK_INSIDE = """
def is_ours(name):
    return open(f'/proc/{name}/comm').read() == 'ramet-pod\\n'
def look(name, log):
    for what in 'mem environ maps exe cwd root fd fd/0 fd/3 ns/user auxv syscall stack'.split():
        path = f'/proc/{name}/{what}'
        try:
            if what in ('exe', 'cwd', 'root', 'fd/0', 'fd/3', 'ns/user'):
                got = os.readlink(path)
            elif what == 'fd':  # numbers, which tell nothing; what they stand for is tried as well
                got = repr([number for number in os.listdir(path) if int(number) > 3])
            else:
                file = os.open(path, os.O_RDWR if what == 'mem' else os.O_RDONLY)
                got = repr(os.read(file, 64)) if what != 'mem' else 'opened'
                os.close(file)
        except OSError:
            continue
        if is_ours(name) and got not in ("b''", '[]'):
            log.write(f'leak {what} {got}\\n')
lurk(look)
"""


@pytest.fixture
def hostile(neighbour: Neighbour) -> Iterator[Sandbox]:
    """A sandbox to attack from. Afterwards the neighbour is unharmed and nothing of the sandbox is left."""
    with Sandbox() as sandbox:
        yield armed(sandbox)
        sandbox.run_code("open('/root/stop', 'w').close()")
    neighbour.assert_unharmed()
    assert [
        pid for pid in descendants(embedded.default_engine().pid) if b"enter" in command_line(pid).split(b"\0")
    ] == []


def found(sandbox: Sandbox) -> list[str]:
    return sandbox.run_code("cat /root/found-*", language="bash").stdout.splitlines()


def open_many(sandbox: Sandbox, count: int) -> list[int | str]:
    """Exit codes, or the names of the errors."""

    def open_one(_: int) -> int | str:
        try:
            return sandbox.terminal("exit 6").wait()
        except RametError as error:
            return type(error).__name__

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(open_one, range(count)))


@pytest.mark.deep("load")
def test_nobody_looks_into_the_helper_while_it_has_power(hostile: Sandbox) -> None:
    hostile.run_code(_LURK + _LOOK_INSIDE)
    codes = open_many(hostile, 150)
    hostile.run_code("open('/root/stop', 'w').close()")
    seen = found(hostile)
    assert set(codes) == {6}
    assert any(line.startswith("met ") for line in seen), "nobody was quick enough: this test proves nothing"
    assert [line for line in seen if not line.startswith("met ")] == []


@pytest.mark.deep("restarts")
def test_killing_the_helper_only_ends_the_terminal(hostile: Sandbox) -> None:
    hostile.run_code(_LURK + "lurk(lambda name, log: os.kill(int(name), signal.SIGKILL))")
    codes = open_many(hostile, 100)
    assert set(codes) <= {6, 137}
    assert hostile.run_code("6 * 7").value == "42"


@pytest.mark.deep("load")
def test_stopping_the_helper_makes_the_terminal_fail_and_nothing_else(hostile: Sandbox, neighbour: Neighbour) -> None:
    hostile.run_code(_LURK + "lurk(lambda name, log: os.kill(int(name), signal.SIGSTOP))")
    outcomes: list[int | str] = []
    over = threading.Event()

    def others_go_on() -> None:
        while not over.is_set():
            neighbour.assert_unharmed()

    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(others_go_on)
        try:
            for _ in range(20):
                outcomes += open_many(hostile, 4)
                if "SandboxLost" in outcomes:
                    break
        finally:
            over.set()
        watching.result(60)
    assert set(outcomes) <= {6, "SandboxLost"}
    assert hostile.run_code("6 * 7").value == "42"
    with hostile.fork(1) as children:
        assert children[0].run_code("6 * 7").value == "42"


def test_a_terminal_that_is_stopped_for_ever_can_be_killed(hostile: Sandbox) -> None:
    screen = Screen(hostile.terminal("echo ready; kill -STOP $$"))
    screen.wait_for("ready")
    screen.terminal.kill()
    assert screen.terminal.wait() in (129, 137)
    screen.wait_until_over()


def test_the_folder_of_terminals_cannot_be_replaced(hostile: Sandbox) -> None:
    attempts = value(
        hostile,
        """
os.makedirs('/tmp/fake', exist_ok=True)
[refusal(os.rename, '/dev', '/olddev'), refusal(os.rename, '/dev/pts', '/dev/old'), refusal(os.unlink, '/dev/ptmx'),
 refusal(os.symlink, '/tmp/fake', '/dev/pts/x'), refusal(os.rename, '/dev/pts/ptmx', '/dev/pts/y'),
 refusal(os.unlink, '/dev/pts/ptmx'), refusal(os.mknod, '/dev/pts/z'), refusal(os.rmdir, '/dev/pts'),
 refusal(os.link, '/dev/null', '/dev/pts/n'), refusal(os.mkdir, '/dev/pts/d')]
""",
    )
    assert set(attempts) <= {"EBUSY", "EROFS", "EPERM", "EXDEV", "EACCES"}
    assert open_many(hostile, 1) == [6]


def test_modes_of_the_device_do_not_matter(hostile: Sandbox) -> None:
    hostile.run_code("os.chmod('/dev/pts/ptmx', 0); os.chmod('/dev/pts', 0)")
    assert open_many(hostile, 1) == [6]


def test_a_sandbox_that_has_taken_all_terminals_has_none_left(hostile: Sandbox) -> None:
    taken = value(
        hostile,
        """
held = []
while isinstance(got := refusal(os.open, '/dev/ptmx', os.O_RDWR | os.O_NOCTTY), int):
    held.append(got)
len(held)
""",
    )
    assert taken == 64
    with pytest.raises(LimitReached, match="no terminal left"):
        hostile.terminal()
    hostile.run_code("for one in held: os.close(one)")
    assert open_many(hostile, 1) == [6]


def test_a_terminal_that_was_taken_over_is_not_given_out(hostile: Sandbox) -> None:
    """Processes without a terminal open every new one, to make it theirs before the helper does."""
    hostile.run_code(
        """
for _ in range(4):
    if not os.fork():
        os.setsid()
        while not os.path.exists('/root/stop'):
            for number in range(8):
                try:
                    os.close(os.open(f'/dev/pts/{number}', os.O_RDWR))
                except OSError:
                    pass
        os._exit(0)
"""
    )
    assert set(open_many(hostile, 60)) <= {6, "SandboxLost"}
    hostile.run_code("open('/root/stop', 'w').close()")
    wait_until(lambda: open_many(hostile, 1) == [6], "terminals can be opened again")


def test_a_full_sandbox_gets_no_terminal(neighbour: Neighbour) -> None:
    with Sandbox(pids=12) as sandbox:
        armed(sandbox)
        made = value(
            sandbox,
            """
made = []
while isinstance(got := refusal(os.fork), int):
    if got == 0:
        signal.pause()
    made.append(got)
len(made)
""",
        )
        assert made >= 8
        with pytest.raises(LimitReached, match="limit of processes or memory"):
            sandbox.terminal()
        # One for the program, and one for the helper that brings it there.
        sandbox.run_code("for one in made[:2]: os.kill(one, 9); os.waitpid(one, 0)")
        assert sandbox.terminal(["true"]).wait() == 0
        neighbour.assert_unharmed()


def test_a_sandbox_without_memory_left_does_no_harm(neighbour: Neighbour) -> None:
    with Sandbox(memory_mib=96) as sandbox:
        if "cgroup v" not in str(sandbox.info().walls["memory"]):
            pytest.skip("this host has no writable control group for memory")
        armed(sandbox)
        # Fills what is left, and again what others give up: whoever needs a page may be the one to go.
        sandbox.run_code(
            """
if not os.fork():
    open('/proc/self/oom_score_adj', 'w').write('1000')
    while True:
        if not os.fork():
            keep = [bytearray(65536) for _ in range(100000)]
        os.wait()
"""
        )
        outcomes: set[int | str] = set()
        for _ in range(20):
            try:
                outcomes.add(sandbox.terminal(["true"]).wait())
            except (LimitReached, SandboxLost) as error:
                outcomes.add(error.code)
        assert outcomes <= {0, 137, "limit_reached", "sandbox_lost"}
        neighbour.assert_unharmed()
    assert [pid for pid in descendants(embedded.default_engine().pid) if command_line(pid) == b"true\0"] == []


def test_variables_for_the_loader_reach_the_program_only(hostile: Sandbox) -> None:
    """Were they the helper's, they would be followed with the engine's power."""
    hostile.files.write("/root/evil.so", b"not a library")
    variables = {"LD_PRELOAD": "/root/evil.so", "LD_AUDIT": "/root/evil.so", "GLIBC_TUNABLES": "glibc.malloc.check=3"}
    terminal = hostile.terminal(["/bin/sh", "-c", "echo $LD_PRELOAD"], env=variables)
    text = b"".join(terminal.read()).decode()
    assert text.endswith("/root/evil.so\r\n")
    assert "cannot be preloaded" in text


def test_a_program_of_the_sandboxs_own_on_the_path_is_behind_the_walls(hostile: Sandbox) -> None:
    script = (
        "#!/bin/sh\ngrep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status\nls /proc/self/fd | tr '\\n' ' '\n"
    )
    hostile.files.write("/root/.local/bin/bash", script)
    hostile.run_code("os.chmod('/root/.local/bin/bash', 0o755)")
    text = b"".join(hostile.terminal().read()).decode()
    assert text.split() == (
        f"CapEff: {'0' * 16} CapBnd: {'0' * 16} NoNewPrivs: 1 Seccomp: 2 0 1 2 3".split()  # 3: the folder that ls lists
    )


def test_links_in_the_way_to_the_folder_lead_nowhere_outside(hostile: Sandbox) -> None:
    hostile.run_code("os.symlink('/proc/1/root', '/root/out'); os.symlink('/proc/1/cwd', '/root/cwd')")
    for folder in ("/root/out", "/root/cwd", "/proc/1/root", "/proc/1/cwd"):
        with pytest.raises(RametError, match="cwd cannot be entered: "):
            hostile.terminal("pwd", cwd=folder)


def test_killing_everybody_from_a_terminal_harms_only_the_sandbox(hostile: Sandbox, neighbour: Neighbour) -> None:
    terminal = hostile.terminal("kill -9 -1; kill -9 0")
    assert terminal.wait() in (0, 1, 137)
    wait_until(lambda: hostile.info().state == "lost", "the REPL is gone")
    neighbour.assert_unharmed()
    assert hostile.run_code("6 * 7").value == "42"
    assert open_many(hostile, 2) == [6, 6]


def test_a_home_that_is_closed_is_no_obstacle(hostile: Sandbox) -> None:
    hostile.run_code("os.chmod('/root', 0)")
    assert b"".join(hostile.terminal("pwd").read()) == b"/\r\n"
    hostile.run_code("os.chmod('/root', 0o700)")


@pytest.mark.deep("load")
def test_a_terminal_that_somebody_wants_for_himself_is_given_up(hostile: Sandbox) -> None:
    """TIOCEXCL: nobody else may open it, nor the engine without power over the whole machine."""
    hostile.run_code(
        """
for _ in range(4):
    if not os.fork():
        os.setsid()
        while not os.path.exists('/root/stop'):
            for number in range(8):
                try:
                    slave = os.open(f'/dev/pts/{number}', os.O_RDWR | os.O_NOCTTY)
                    fcntl.ioctl(slave, 0x540C)
                    os.close(slave)
                except OSError:
                    pass
        os._exit(0)
"""
    )
    assert set(open_many(hostile, 60)) <= {6, "SandboxLost"}
