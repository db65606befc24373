"""Handles: closed, forgotten, used in another process after a fork, used after their engine is gone."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from ramet import AsyncSandbox, EngineClosed, Sandbox, close_engine
from ramet.transport import embedded
from tests.behaviour.waiting import wait_until
from tests.lifetime.programs import Program, Watch
from tests.processes import command_line, descendants, descriptor_count


def processes_of(sandbox: Sandbox) -> int:
    return int(sandbox.info().usage["processes"])


def engine_descendants() -> set[int]:
    return set(descendants(embedded.default_engine().pid))


@pytest.mark.promise("survive-close")
def test_closing_a_sandbox_ends_every_process_in_it() -> None:
    with Sandbox() as other:
        other.run_code("x = 1")
        before = engine_descendants()
        sandbox = Sandbox()
        sandbox.run_code(
            "import subprocess\nfor _ in range(5): subprocess.Popen(['sleep', '3600'], start_new_session=True)"
        )
        sandbox.run_code("nohup setsid sleep 3600 > /dev/null 2>&1 &", language="bash")

        def sleeping() -> list[int]:
            return [pid for pid in engine_descendants() - before if is_sleep(pid)]

        # What bash has put in the background may not be `sleep` yet when the cell is over.
        wait_until(lambda: len(sleeping()) == 6, "six processes sleep")
        watch = Watch(sleeping())
        sandbox.close()
        watch.wait_until_all_ended()
        assert other.run_code("x").value == "1"


def is_sleep(pid: int) -> bool:
    return command_line(pid).startswith(b"sleep\0")


@pytest.mark.deep("restarts")
def test_sandboxes_that_come_and_go_leave_no_descriptors_and_no_processes() -> None:
    def cycle() -> None:
        for _ in range(10):
            with Sandbox() as sandbox:
                sandbox.run_code("print(1)")

    def engine_descriptors() -> int:
        return sum(
            descriptor_count(pid)
            for pid in descendants(embedded.default_engine().pid)
            if b"ramet.engine" in command_line(pid)
        )

    cycle()
    ours, theirs = len(os.listdir("/proc/self/fd")), engine_descriptors()
    processes = len(engine_descendants())
    for _ in range(5):
        cycle()
    assert len(os.listdir("/proc/self/fd")) <= ours
    # Pods are made ready behind our back, four of some six descriptors and two processes. One of anything left behind
    # by each of fifty sandboxes would be more.
    wait_until(lambda: len(engine_descendants()) < processes + 40, "all processes of closed sandboxes ended")
    wait_until(lambda: engine_descriptors() < theirs + 40, "the engine let go of all descriptors")


def test_a_forgotten_sandbox_warns_and_is_closed() -> None:
    sandbox = Sandbox()
    sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '3600'])")
    watch = Watch([pid for pid in engine_descendants() if is_sleep(pid)])
    with pytest.warns(ResourceWarning, match=sandbox.id):
        del sandbox
    watch.wait_until_all_ended()


def test_a_forgotten_async_sandbox_warns_and_is_closed() -> None:
    async def forget() -> None:
        await AsyncSandbox.create()
        gc.collect()

    with pytest.warns(ResourceWarning, match="AsyncSandbox"):
        asyncio.run(forget())


def test_a_closed_engine_says_so_and_the_next_sandbox_starts_another() -> None:
    old = Sandbox()
    pid = embedded.default_engine().pid
    watch = Watch([pid, *descendants(pid)])
    close_engine()
    watch.wait_until_all_ended()
    for call in (lambda: old.run_code("1"), lambda: old.files.list(), old.info, old.interrupt):
        with pytest.raises(EngineClosed):
            call()
    old.close()
    close_engine()
    with Sandbox() as fresh:
        assert fresh.run_code("6 * 7").value == "42"
        with pytest.raises(EngineClosed):
            old.run_code("1")


def test_an_engine_with_a_template_of_many_threads_ends_by_itself() -> None:
    pytest.importorskip("pandas")
    with Sandbox("python-datasci") as sandbox:
        sandbox.run_code("1")
    engine = embedded.default_engine()
    close_engine()
    # Not -9: it was not killed for taking too long.
    assert engine._process.wait(0) == 0


def test_one_event_loop_after_another_can_use_the_engine() -> None:
    async def session() -> str | None:
        async with AsyncSandbox() as sandbox:
            return (await sandbox.run_code("6 * 7")).value

    for _ in range(3):
        assert asyncio.run(session()) == "42"


@pytest.mark.deep("restarts")
def test_a_handle_used_after_fork_says_so_and_the_parent_goes_on(start_program: Callable[[str], Program]) -> None:
    program = start_program("""
        import os
        from ramet import ForkedProcess, Sandbox
        s = Sandbox()
        s.run_code("x = 41")
        child = os.fork()
        if child == 0:
            for call in (lambda: s.run_code("x = 0"), s.info, s.interrupt, lambda: s.files.read("/root/f")):
                try:
                    call()
                except ForkedProcess as error:
                    print("refused", "Sandbox()" in str(error))
            s.close()
            with Sandbox() as own:
                print("own", own.run_code("6 * 7").value)
            os._exit(0)
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print("parent", s.run_code("x + 1").value)
        s.close()
    """)
    assert program.finish().splitlines() == [
        *["refused True"] * 4,
        "own 42",
        "child ended with 0",
        "parent 42",
    ]


@pytest.mark.deep("restarts")
def test_a_forked_child_that_exits_normally_does_not_end_the_parents_engine(
    start_program: Callable[[str], Program],
) -> None:
    program = start_program("""
        import multiprocessing, os, sys, warnings
        from ramet import Sandbox
        # Threads of the pool may be counted for a moment after they ended; Python warns of a fork beside them.
        warnings.simplefilter("ignore", DeprecationWarning)

        def work(number):
            with Sandbox() as own:
                return own.run_code(str(number)).value

        s = Sandbox()
        s.run_code("x = 41")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, range(4)))
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        print(s.run_code("x + 1").value)
        s.close()
    """)
    assert program.finish().splitlines() == ["['0', '1', '2', '3']", "42"]


def test_a_forked_child_that_lives_on_does_not_keep_a_call_of_the_parent_open(
    start_program: Callable[[str], Program],
) -> None:
    """The child has copies of the parent's descriptors: a call that the parent gives up must end all the same."""
    program = start_program("""
        import os, signal, sys
        from ramet import Sandbox
        s = Sandbox()
        events = s.run_code_stream("print('begun', flush=True)\\nimport time\\nwhile True: time.sleep(0.01)")
        next(events)
        child = os.fork()
        if child == 0:
            signal.pause()
        events.close()
        print(s.run_code("'free again'").value)
        s.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    """)
    assert program.finish().splitlines() == ["'free again'"]


def test_a_process_that_may_open_too_few_descriptors_is_told_so() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1100, 1100))\n"
        "from ramet import HostNotCapable, Sandbox\n"
        "try: Sandbox()\n"
        "except HostNotCapable as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("this process may open at most 1100 files"), done
    assert "hint: raise the hard limit" in done.stdout
