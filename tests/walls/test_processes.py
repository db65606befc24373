"""A sandbox sees its own processes and nobody else's."""

from __future__ import annotations

import os

import pytest

from ramet import Sandbox
from tests.walls.attempts import armed, value


@pytest.mark.promise("wall-processes")
def test_only_the_init_and_the_repl_are_there(walled: Sandbox) -> None:
    seen = value(walled, "sorted(int(name) for name in os.listdir('/proc') if name.isdigit())")
    assert seen == [1, walled.info().pid]


def test_the_owner_and_its_process_numbers_mean_nothing(walled: Sandbox) -> None:
    numbers = [os.getpid(), os.getppid()]
    assert value(walled, f"[refusal(os.kill, number, 0) for number in {numbers}]") == ["ESRCH", "ESRCH"]


def test_another_sandbox_can_be_neither_seen_nor_signalled(walled: Sandbox) -> None:
    with Sandbox() as other:
        pid = other.info().pid
        assert pid != walled.info().pid
        assert value(walled, f"os.path.exists('/proc/{pid}')") is False
        assert value(walled, f"refusal(os.kill, {pid}, 9)") == "ESRCH"
        assert value(walled, f"refusal(os.pidfd_open, {pid})") == "ESRCH"
        assert other.run_code("1 + 1").value == "2"


def test_the_repl_has_no_parent(walled: Sandbox) -> None:
    assert value(walled, "os.getppid()") == 0


def test_the_repl_leads_a_session_and_a_group_of_its_own(walled: Sandbox) -> None:
    assert value(walled, "os.getsid(0) == os.getpgid(0) == os.getpid()") is True


def test_the_repl_is_not_traced(walled: Sandbox) -> None:
    assert value(walled, "[line.split()[1] for line in open('/proc/self/status') if line.startswith('TracerPid')]") == [
        "0"
    ]


@pytest.mark.parametrize("name", ["environ", "maps", "mem", "auxv", "syscall", "stack", "pagemap", "smaps", "io"])
def test_the_init_shows_nothing_of_its_memory(walled: Sandbox, name: str) -> None:
    answer = value(walled, f"refusal(reading, '/proc/1/{name}')")
    assert answer == ("EPERM" if name == "syscall" else "EACCES")


@pytest.mark.parametrize("name", ["root", "cwd", "exe", "fd/3", "map_files"])
def test_the_init_shows_nothing_of_its_files(walled: Sandbox, name: str) -> None:
    assert value(walled, f"refusal(os.listdir, '/proc/1/{name}')") == "EACCES"


@pytest.mark.parametrize("name", ["root/etc", "cwd/etc", "root/../etc", "task/1/root/etc"])
def test_the_init_is_no_way_round(walled: Sandbox, name: str) -> None:
    assert value(walled, f"refusal(os.listdir, '/proc/1/{name}')") == "EACCES"


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP", "SIGTERM", "SIGSEGV", "SIGUSR1", "SIGABRT"])
def test_the_init_is_deaf_to_signals_from_inside(walled: Sandbox, number: str) -> None:
    assert value(walled, f"refusal(os.kill, 1, signal.{number})") is None
    state = "[line.split()[1] for line in open('/proc/1/status') if line.startswith('State')]"
    assert value(walled, state) == ["S"]


def test_system_v_objects_of_one_sandbox_are_not_in_another(walled: Sandbox) -> None:
    make = "call(29, 0x52414d45, 4096, 0o1666)"  # shmget with IPC_CREAT
    assert isinstance(value(walled, make), int)
    with Sandbox() as other:
        assert value(armed(other), "call(29, 0x52414d45, 4096, 0)") == "ENOENT"


@pytest.mark.parametrize("number", ["0", "os.getpid()", "1"])
def test_priorities_cannot_be_raised(walled: Sandbox, number: str) -> None:
    assert value(walled, f"refusal(os.setpriority, os.PRIO_PROCESS, {number}, -5)") == "EACCES"


def test_real_time_scheduling_is_refused(walled: Sandbox) -> None:
    assert value(walled, "refusal(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))") == "EPERM"


def test_hard_limits_cannot_be_raised(walled: Sandbox) -> None:
    code = """
def attempt_all():
    found = []
    for name in ('NPROC', 'NOFILE', 'NICE', 'RTPRIO'):
        kind = getattr(resource, f'RLIMIT_{name}')
        try:
            resource.setrlimit(kind, (resource.getrlimit(kind)[1] + 1,) * 2)
        except ValueError as error:
            found.append(str(error))
    return found
attempt_all()
"""
    assert value(walled, code) == ["not allowed to raise maximum limit"] * 4


@pytest.mark.parametrize("wanted", [(0, 0), (-1, -1), (4096, 4096)])
def test_a_crash_never_starts_the_core_dump_handler_of_the_host(walled: Sandbox, wanted: tuple[int, int]) -> None:
    """A limit of exactly 1 is what keeps the kernel from starting it; setting another seems to work and does not."""
    value(walled, f"resource.setrlimit(resource.RLIMIT_CORE, {wanted})")
    value(walled, f"resource.prlimit(0, resource.RLIMIT_CORE, {wanted})")
    assert value(walled, "resource.getrlimit(resource.RLIMIT_CORE)") == (1, 1)


@pytest.mark.parametrize("limit", ["RLIMIT_NICE", "RLIMIT_RTPRIO"])
def test_limits_that_would_lend_power_are_zero(walled: Sandbox, limit: str) -> None:
    """Whatever the owner was given by its session: real-time priority of an audio group, say."""
    assert value(walled, f"resource.getrlimit(resource.{limit})") == (0, 0)


def test_a_sandbox_cannot_hide_from_the_kernel_when_memory_is_short(attacker: Sandbox) -> None:
    # Without a control group for memory the kernel must not choose the owner before its sandboxes.
    counted = "cgroup v" in str(attacker.info().walls["memory"])
    assert value(attacker, "int(reading('/proc/self/oom_score_adj'))") == (500 if counted else 1000)
    assert value(attacker, "refusal(writing, '/proc/self/oom_score_adj', b'-1')") == "EACCES"
    assert value(attacker, "refusal(writing, '/proc/self/oom_score_adj', b'-1000')") == "EACCES"
