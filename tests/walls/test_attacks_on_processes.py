"""Signals, forks, threads, stops: after each the neighbour answers, the engine is the same and the sandbox goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet import Sandbox
from tests.walls.attempts import armed, ending, value

Check = Callable[[], None]
KILLED = ("lost", "signal 9", 137)
SEGFAULT = ("lost", "signal 11", 139)
KEPT = ("kept", None, 0)
ENDED = ("lost", "timeout", 137)
HUNG_UP = ("lost", "broken protocol", 137)

_ATTACKS = {
    "kill_of_the_own_group": ("os.kill(0, 9)", KILLED),
    "killpg": ("os.killpg(0, 9)", KILLED),
    "kill_of_everybody": ("refusal(os.kill, -1, 9); os.kill(os.getpid(), 9)", KILLED),
    "kill_of_itself": ("os.kill(os.getpid(), 9)", KILLED),
    "kill_of_the_init": ("os.kill(1, 9); os.kill(1, signal.SIGSTOP)", KEPT),
    "kill_by_a_child": ("subprocess.run(['bash', '-c', 'kill -9 -1']); os.kill(os.getpid(), 9)", KILLED),
    "kill_of_everything_that_is_python": (
        # Not itself: 10000 comes before 9999 there, and the rest would live.
        "every = 'for p in /proc/[0-9]*; do [ ${p#/proc/} = $$ ] || kill -9 ${p#/proc/}; done'\n"
        "subprocess.run(['bash', '-c', every]); time.sleep(60)",
        KILLED,
    ),
    "abort": ("os.abort()", ("lost", "signal 6", 134)),
    "segfault": ("ctypes.string_at(0)", SEGFAULT),
    "exit_in_the_middle": ("os._exit(3)", ("lost", "exit", 3)),
    "exit_of_the_main_thread_only": (
        "threading.Thread(target=time.sleep, args=(60,)).start(); call(60, 0)",
        ("lost", "timeout", 137),
    ),
    "stop_of_itself": ("os.kill(os.getpid(), signal.SIGSTOP)", ENDED),
    "stop_of_everybody": ("refusal(os.kill, -1, signal.SIGSTOP); os.kill(0, signal.SIGSTOP)", ENDED),
    "traceme": ("assert call(101, 0, 0, 0, 0) == 'EPERM'", KEPT),
    "exec_of_another_program": ("os.execv('/bin/sleep', ['sleep', '60'])", HUNG_UP),
    "exec_of_another_program_from_a_thread": (
        "threading.Thread(target=os.execv, args=('/bin/sleep', ['sleep', '60'])).start(); time.sleep(60)",
        HUNG_UP,
    ),
    "exec_that_keeps_the_control_socket": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {2, 62}); os.set_inheritable(1000, True)\n"
        "os.execv('/bin/sleep', ['sleep', '60'])",
        ENDED,
    ),
    "exec_of_the_interpreter": ("os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])", ("lost", "exit", 0)),
    "all_signals_blocked": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: time.sleep(1)",
        ENDED,
    ),
    "handlers_replaced": (
        "for number in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)\nwhile True: pass",
        ENDED,
    ),
    "interrupts_swallowed": ("while True:\n  try:\n    while True: pass\n  except BaseException: pass", None),
    "children_ignored": ("signal.signal(signal.SIGCHLD, signal.SIG_IGN); subprocess.run(['/bin/true'])", KEPT),
    "paused_vfork_child": ("_c.vfork() or _c.pause()", ENDED),
    "stopped_vfork_child": ("_c.vfork() or _c.kill(_c.getpid(), 19)", ENDED),
    "deep_recursion_in_c": (
        "page = mmap.mmap(-1, 4096, prot=7); page.write(b'\\xe8\\xfb\\xff\\xff\\xff')  # a call of itself\n"
        "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()",
        SEGFAULT,
    ),
    "short_threads": (
        "thread = ctypes.c_void_p()\n"
        "for _ in range(10000):\n"
        "    assert _c.pthread_create(ctypes.byref(thread), None, _c.getpid, None) == 0\n"
        "    _c.pthread_join(thread, None)",
        KEPT,
    ),
    "nice_games": (
        "os.nice(19); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); refusal(os.setpriority, os.PRIO_USER, 0, 19)",
        KEPT,
    ),
    "limits_of_zero": (
        "for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_STACK, resource.RLIMIT_FSIZE):\n"
        "    resource.setrlimit(kind, (0, 0))",
        None,
    ),
    "limits_of_the_init_taken_away": (
        "kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)\n"
        "[refusal(resource.prlimit, 1, kind, (0, 0)) for kind in kinds]\n"
        "refusal(os.setpriority, os.PRIO_PROCESS, 1, 19); None",
        KEPT,
    ),
    "undumpable": ("call(157, 4, 0, 0, 0, 0)", KEPT),
    "parent_death_signal": ("call(157, 1, 9, 0, 0, 0)", KEPT),
    "orphans_in_new_sessions": (
        "subprocess.run(['bash', '-c', 'for i in 1 2 3 4 5 6 7 8 9; do setsid sleep 100 & done'])\n"
        "os.kill(os.getpid(), 9)",
        KILLED,
    ),
    "cpu_time_limit": ("resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass", KILLED),
    "alarm": ("signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(60)", ("lost", "signal 14", 142)),
    "end_of_all_memory_maps": ("call(11, 0, 0x7ffffffff000)", SEGFAULT),
}  # fmt: skip


@pytest.mark.parametrize("name", _ATTACKS)
def test_an_attack_by(name: str, attacker: Sandbox, neighbour_still_answers: Check) -> None:
    """The cell ends as told here; then the neighbour answers, and so does the sandbox itself."""
    code, expected = _ATTACKS[name]
    hopeless = expected == ENDED or name == "interrupts_swallowed"
    result = attacker.run_code(code, timeout=0.3 if hopeless else 20)
    if expected is not None:
        assert ending(result) == expected
    neighbour_still_answers()
    stuck = name == "limits_of_zero"  # its REPL runs, but cannot do anything any more
    again = attacker.run_code("6 * 7", timeout=1 if stuck else 20)
    if not stuck:
        assert again.value == "42", again
        assert again.restarted is (result.state == "lost")


def test_a_fork_in_a_cell_does_not_answer_for_the_repl(attacker: Sandbox, neighbour_still_answers: Check) -> None:
    for round_number in range(5):
        result = attacker.run_code(f"pid = os.fork(); print('child' if pid == 0 else 'parent'); {round_number}")
        assert result.value == str(round_number)
        assert "parent" in result.stdout
        assert attacker.run_code(f"{round_number} + 100").value == str(round_number + 100)
    neighbour_still_answers()


def test_a_forked_copy_that_writes_frames_of_its_own_cannot_end_the_cell_of_another(attacker: Sandbox) -> None:
    """It has no control socket any more."""
    code = """
pid = os.fork()
if pid == 0:
    os._exit(0 if refusal(os.fstat, 1000) == 'EBADF' else 1)
os.waitpid(pid, 0)[1]
"""
    assert value(attacker, code) == 0


@pytest.mark.promise("wall-process-count")
def test_a_fork_bomb_ends_at_the_limit(neighbour_still_answers: Check) -> None:
    with Sandbox(pids=32, recover="fresh") as sandbox:
        armed(sandbox)
        code = """
made = []
def bomb():
    while True:
        pid = refusal(os.fork)
        if pid == 0:
            signal.pause()
        if not isinstance(pid, int):
            return pid
        made.append(pid)
(bomb(), len(made) <= 32, len(made) > 20)
"""
        assert value(sandbox, code) == ("EAGAIN", True, True)
        assert sandbox.info().usage.get("processes", 0) <= 33  # not counted without control groups
        neighbour_still_answers()
        assert (
            value(sandbox, "[os.kill(pid, 9) for pid in made] and len([os.waitpid(pid, 0) for pid in made]) > 20")
            is True
        )
        assert value(sandbox, "subprocess.run(['/bin/true']).returncode") == 0


def test_a_fork_bomb_of_bash_ends_at_the_limit(neighbour_still_answers: Check) -> None:
    with Sandbox(pids=32, recover="fresh") as sandbox:
        sandbox.run_code("f() { f | f & f; }; f", language="bash", timeout=1)
        neighbour_still_answers()
        sandbox.run_code("import os; os._exit(0)", timeout=5)
        assert sandbox.run_code("6 * 7", timeout=20).value == "42"


def test_the_limit_of_processes_counts_threads(neighbour_still_answers: Check) -> None:
    with Sandbox(pids=32, recover="fresh") as sandbox:
        code = """
import threading
gate, made = threading.Event(), 0
try:
    while True:
        threading.Thread(target=gate.wait).start(); made += 1
except RuntimeError as error:
    message = str(error)
gate.set()
(message, 20 < made <= 32)
"""
        assert value(sandbox, code) == ("can't start new thread", True)
        neighbour_still_answers()


def test_a_sandbox_full_of_processes_is_revived(neighbour_still_answers: Check) -> None:
    """A fresh REPL takes a place and a process id that the dead may still hold."""
    with Sandbox(pids=64, recover="fresh") as sandbox:
        for _ in range(3):
            result = sandbox.run_code(
                "import os, signal\n"
                "while True:\n"
                "    try: pid = os.fork()\n"
                "    except OSError: break\n"
                "    if pid == 0: signal.pause()\n"
                "os._exit(3)",
                timeout=20,
            )
            assert ending(result) == ("lost", "exit", 3)
            assert sandbox.run_code("6 * 7", timeout=20).value == "42"
        neighbour_still_answers()


def test_spinning_on_every_processor_delays_nobody_for_long(attacker: Sandbox, neighbour_still_answers: Check) -> None:
    spin = "spinners = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(20)]"
    assert attacker.run_code(spin, timeout=20).ok
    neighbour_still_answers()
    with Sandbox() as another:
        assert another.run_code("6 * 7", timeout=20).value == "42"


def test_many_pending_signals_leave_the_neighbours_theirs(attacker: Sandbox, neighbour_still_answers: Check) -> None:
    """They are counted for all processes of one uid together; each sandbox has a bound of its own."""
    flood = """
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
sent = 0
while _c.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) == 0:
    sent += 1
sent
"""
    assert value(attacker, flood) <= 2048
    neighbour_still_answers()
    with Sandbox() as another:
        assert (
            value(
                armed(another),
                "signal.pthread_sigmask(signal.SIG_BLOCK, {40}); _c.sigqueue(os.getpid(), 40, ctypes.c_void_p(0))",
            )
            == 0
        )
