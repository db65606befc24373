"""The engine ends with its owner, whatever way that ends, and leaves no process, mount, control group or file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.lifetime.programs import WAIT_SECONDS, Program, Watch, groups_of, mounts
from tests.processes import descendants

# Sandboxes with something running in them, and one forgotten process each.
OWNER = """
    import subprocess, sys, threading
    from ramet import Sandbox
    kept = [Sandbox() for _ in range(3)]
    for sandbox in kept:
        sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '3600'], start_new_session=True)")
    busy = threading.Thread(target=lambda: kept[0].run_code("while True: pass"), daemon=True)
    busy.start()
    while kept[0].info().state != "running":
        pass
    print("ready")
    sys.stdin.readline()
"""

ENDS = {
    "returns": "",
    "raises": "raise ValueError('of the user')",
    "exits": "sys.exit(3)",
    "exits at once": "import os; os._exit(4)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "closes its sandboxes first": "[s.close() for s in kept]",
    "closes its engine first": "import ramet; ramet.close_engine()",
}


def assert_nothing_is_left(program: Program, watch: Watch, mounted: set[str]) -> None:
    watch.wait_until_all_ended()
    assert groups_of(program.process.pid) == []
    assert list(program.folder.iterdir()) == []
    assert mounts() <= mounted


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_nothing_is_left_when_the_owner(start_program: Callable[[str], Program], end: str) -> None:
    mounted = mounts()
    program = start_program(OWNER + "    " + end)
    program.until("ready")
    watch = Watch(descendants(program.process.pid))
    assert len(watch) > 3
    program.finish_input()
    program.process.wait(WAIT_SECONDS)
    assert_nothing_is_left(program, watch, mounted)


@pytest.mark.promise("survive-owner")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_is_left_when_the_owner_is_killed_by(start_program: Callable[[str], Program], number: int) -> None:
    mounted = mounts()
    program = start_program(OWNER)
    program.until("ready")
    watch = Watch(descendants(program.process.pid))
    assert len(watch) > 3
    program.process.send_signal(number)
    program.process.wait(WAIT_SECONDS)
    assert_nothing_is_left(program, watch, mounted)


def test_nothing_is_left_when_the_owner_is_killed_while_the_engine_starts(
    start_program: Callable[[str], Program],
) -> None:
    mounted = mounts()
    program = start_program("print('ready')\nfrom ramet import Sandbox\nSandbox()")
    program.until("ready")
    watch = Watch([])
    while len(watch) == 0 and program.process.poll() is None:
        watch = Watch(descendants(program.process.pid))
    program.process.kill()
    program.process.wait(WAIT_SECONDS)
    assert_nothing_is_left(program, watch, mounted)


@pytest.mark.deep("restarts")
def test_an_interrupt_of_the_terminal_ends_a_call_and_not_the_engine(start_program: Callable[[str], Program]) -> None:
    """Ctrl-C goes to the whole group: the owner decides what it means."""
    program = start_program("""
        import os, signal, threading
        from ramet import Sandbox
        with Sandbox() as s:
            s.run_code("x = 41")
            threading.Timer(0.3, lambda: os.killpg(0, signal.SIGINT)).start()
            os.setpgid(0, 0) if os.getpgid(0) != os.getpid() else None
            try:
                s.run_code("import time; time.sleep(600)")
            except KeyboardInterrupt:
                print("interrupted")
            print(s.run_code("x + 1").value)
    """)
    assert program.finish().split() == ["interrupted", "42"]


def test_an_engine_that_is_killed_is_told_and_replaced(start_program: Callable[[str], Program]) -> None:
    program = start_program("""
        import os, signal
        from ramet import EngineLost, Sandbox
        from ramet.transport import embedded
        s = Sandbox()
        os.kill(embedded.default_engine().pid, signal.SIGKILL)
        def lost(call):
            while True:  # the engine ends a moment after its launcher, and may still answer
                try:
                    call()
                except EngineLost as error:
                    return "signal 9" in str(error)
        for call in (lambda: s.run_code("1"), lambda: s.files.list(), lambda: s.info()):
            print("lost:", lost(call))
        s.close()
        with Sandbox() as fresh:
            print(fresh.run_code("6 * 7").value)
    """)
    assert program.finish().split("\n")[:-1] == ["lost: True", "lost: True", "lost: True", "42"]
    assert groups_of(program.process.pid) == []


def test_an_owner_with_a_strict_umask(start_program: Callable[[str], Program]) -> None:
    """Files of the owner's own are nobody else's; what an engine needs is made readable for it all the same."""
    program = start_program("""
        import os
        os.umask(0o077)
        from ramet import Sandbox
        with Sandbox() as s:
            print(s.run_code("import os; open('/root/made', 'w'); oct(os.stat('/root/made').st_mode)").value)
    """)
    assert program.finish().splitlines() == ["'0o100644'"]


@pytest.mark.parametrize("nice", [3, 10, 19])
def test_an_owner_that_is_nice(start_program: Callable[[str], Program], nice: int) -> None:
    program = start_program(f"""
        import os
        os.nice({nice})
        from ramet import Sandbox
        with Sandbox() as parent:
            parent.run_code("import os")
            (child,) = parent.fork()
            with child, parent.terminal("nice") as terminal:
                for one in (parent, child):
                    print(one.run_code("os.getpriority(os.PRIO_PROCESS, 0)").value)
                print(b"".join(terminal.read()).decode().strip())
    """)
    # The tests themselves may have been started with `nice`, and 19 is the end.
    whole = min(os.getpriority(os.PRIO_PROCESS, 0) + nice, 19)
    assert program.finish().splitlines() == [str(max(whole, 5))] * 3
