"""Programs that start an engine in an unusual state: without standard streams, with blocked signals, low limits, or in
the middle of a signal handler."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from tests.lifetime.programs import WAIT_SECONDS, Program

_COUNT = """
from ramet import Sandbox
with Sandbox() as one:
    answer = one.run_code("6 * 7").value
    with one.fork(1) as children:
        answer += children[0].run_code("6 * 7").value
"""


def _run(code: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """In a Python started by a shell, after that shell has done something."""
    return subprocess.run(
        ["/bin/bash", "-c", f'{before}\nexec "$0" -u -c "$1"', sys.executable, textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    "closed",
    [
        closed
        for count in (1, 2, 3)
        for closed in itertools.combinations((0, 1, 2), count)
        if closed in ((0, 1), (0, 1, 2), (1, 2), (1,))
    ],
    ids=str,
)
def test_a_program_may_have_any_of_its_standard_streams_closed(closed: tuple[int, ...]) -> None:
    # Descriptor 9 is where the program reports, whatever else it has.
    code = f"""
        import os, threading
        for number in {closed!r}:
            os.close(number)
        {textwrap.indent(textwrap.dedent(_COUNT), "        ").strip()}
        with Sandbox() as another:
            calls = [threading.Thread(target=another.info) for _ in range(4)]
            for call in calls: call.start()
            for call in calls: call.join()
        def is_socket(number):
            try: return os.readlink(f"/proc/self/fd/{{number}}").startswith("socket:")
            except OSError: return False
        ours = [number for number in {closed!r} if is_socket(number)]
        os.write(9, f"{{answer}} {{ours}}".encode())
    """
    done = _run(code, "exec 9>&1")
    assert done.stdout == "4242 []", done


def test_signals_that_the_starting_thread_blocks_or_ignores_are_not_those_of_sandboxes() -> None:
    code = f"""
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        {textwrap.indent(textwrap.dedent(_COUNT), "        ").strip()}
        with Sandbox() as other:
            answer += other.run_code("import signal; len(signal.pthread_sigmask(signal.SIG_BLOCK, []))").value
        print(answer)
    """
    done = _run(code)
    assert done.stdout == "42420\n", done


@pytest.mark.parametrize("limit", ["ulimit -Sn 64", "ulimit -Sn 256", "ulimit -Sf 0", "ulimit -f 1000"])
def test_low_limits_of_the_owner_do_no_harm(limit: str) -> None:
    done = _run(_COUNT + "print(answer)", limit)
    assert done.stdout == "4242\n", done


def test_a_program_that_may_write_no_files_is_told_so() -> None:
    done = _run(
        """
        from ramet import HostNotCapable, Sandbox
        try: Sandbox()
        except HostNotCapable as error: print(error)
        """,
        "ulimit -f 0",
    )
    assert done.stdout.startswith("this process may write files of at most 0 bytes"), done
    assert "hint: raise the hard limit" in done.stdout


def test_an_engine_whose_processes_are_reniced_makes_sandboxes_all_the_same() -> None:
    code = f"""
        import os
        from ramet import Sandbox
        from tests.processes import descendants
        Sandbox().close()
        for pid in descendants(os.getpid()):
            try: os.setpriority(os.PRIO_PROCESS, pid, 12)
            except ProcessLookupError: pass
        {textwrap.indent(textwrap.dedent(_COUNT), "        ").strip()}
        with Sandbox(memory_mib=300) as other:
            answer += other.run_code("6 * 7").value
            print(answer, other.run_code("import os; os.getpriority(os.PRIO_PROCESS, 0)").value)
    """
    done = _run(code)
    assert done.stdout == "424242 12\n", done


_HANDLERS = {
    "closes up and leaves": "close_engine(); print('closed', flush=True); sys.exit(3)",
    "makes a sandbox": "print(Sandbox().run_code('6 * 7').value, flush=True); sys.exit(3)",
}


@pytest.mark.parametrize("handler", _HANDLERS)
@pytest.mark.parametrize("moment", ["in the launch", "after the launch"])
def test_a_signal_handler_may_use_ramet_while_the_engine_starts(
    start_program: Callable[[str], Program], handler: str, moment: str
) -> None:
    """The signal comes in the middle of what the handler needs as well."""
    where = "embedded._start_process" if moment == "in the launch" else "embedded.PrivateListener.make"
    program = start_program(f"""
        import os, signal, sys
        from ramet import Sandbox
        from ramet.transport import embedded
        from ramet.transport.embedded import close_engine

        def handle(*_):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            {_HANDLERS[handler]}

        signal.signal(signal.SIGTERM, handle)
        real = {where}
        def interrupted(*arguments):
            made = real(*arguments)
            os.kill(os.getpid(), signal.SIGTERM)
            return made
        {where} = embedded.start_process = interrupted
        if "make" in {where!r}:
            embedded.start_process = embedded._start_process
        Sandbox()
        print("not reached")
    """)
    expected = "closed" if handler.startswith("closes") else "42"
    assert program.line() == expected
    program.process.wait(WAIT_SECONDS)
    assert program.process.returncode == 3


def test_a_handler_that_makes_a_sandbox_and_goes_on_leaves_one_engine(start_program: Callable[[str], Program]) -> None:
    program = start_program("""
        import os, signal
        from ramet import Sandbox
        from ramet.transport import embedded
        made = []
        signal.signal(signal.SIGTERM, lambda *_: made.append(Sandbox()))
        real = embedded._start_process
        def interrupted(*arguments):
            embedded.start_process = real
            process = real(*arguments)
            os.kill(os.getpid(), signal.SIGTERM)
            return process
        embedded.start_process = interrupted
        made.append(Sandbox())
        print(len(made), len({one._created().engine.pid for one in made}), made[0].diff(made[1]).files == ())
        for one in made: one.close()
    """)
    assert program.finish().splitlines() == ["2 1 True"]
