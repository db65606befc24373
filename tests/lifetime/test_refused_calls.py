"""Hosts that refuse a single system call, as the filters of containers do: `ramet doctor` says so, and so do errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from ramet.isolation.launch import HELPER

_REFUSING = str(Path(__file__).with_name("refusing.py"))

# The call, what is answered, and which line of `ramet doctor` tells of it.
_CALLS = [
    ("unshare", errno.EPERM, "user-namespace"),
    ("mount", errno.EPERM, "mount"),
    ("open_tree", errno.EPERM, "read-only-tree"),
    ("move_mount", errno.ENOSYS, "read-only-tree"),
    ("mount_setattr", errno.EPERM, "read-only-tree"),
    ("pivot_root", errno.EPERM, "own-root"),
    ("umount2", errno.EPERM, "own-root"),
    ("fsopen", errno.EPERM, "overlay"),
    ("fsconfig", errno.EPERM, "overlay"),
    ("fsmount", errno.ENOSYS, "overlay"),
    ("setns", errno.EPERM, "join-namespaces"),
    ("seccomp", errno.EPERM, "seccomp"),
    ("ptrace", errno.EPERM, "ptrace"),
    ("process_vm_readv", errno.EPERM, "ptrace"),
    ("process_vm_writev", errno.ENOSYS, "ptrace"),
    ("pidfd_getfd", errno.EPERM, "fetch-descriptors"),
    ("kcmp", errno.EPERM, "compare-processes"),
    ("clone3", errno.EPERM, "thread-ids"),
    ("clone3", errno.ENOSYS, "thread-ids"),
]
# One for each place of ours that such an answer reaches first.
_QUICK = ("pivot_root", "fsopen", "setns", "ptrace", "pidfd_getfd", "kcmp", "clone3")


def _deep_but(*quick: str) -> list[ParameterSet]:
    return [pytest.param(*call, marks=[] if call[0] in quick else pytest.mark.deep("attacks")) for call in _CALLS]


_FORK = """
from ramet import HostNotCapable, Sandbox
try:
    with Sandbox() as sandbox:
        print("made")
        sandbox.fork()
except HostNotCapable as error:
    print(error)
"""


def _refusing(
    name: str, answer: int, *arguments: str, program: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, _REFUSING, name, str(answer), program, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def _doctor(name: str, answer: int) -> subprocess.CompletedProcess[str]:
    return _refusing(name, answer, "-m", "ramet.cli.main", "doctor", "--no-trial")


@pytest.mark.parametrize(("name", "answer", "finding"), _CALLS)
def test_every_call_that_sandboxes_are_made_of_is_tried(name: str, answer: int, finding: str) -> None:
    done = _refusing(name, answer, "probe", program=str(HELPER))
    [line] = [line for line in done.stdout.splitlines() if line.startswith(f"no {finding} ")]
    assert line.endswith(os.strerror(answer))


@pytest.mark.parametrize(("name", "answer", "finding"), _deep_but("pivot_root", "kcmp"))
def test_doctor_says_no_where_a_call_is_refused(name: str, answer: int, finding: str) -> None:
    done = _doctor(name, answer)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    [at] = [number for number, line in enumerate(lines) if line.split()[:2] == ["no", finding]]
    assert os.strerror(answer) in lines[at]
    assert "--security-opt seccomp=unconfined" in lines[at + 1]
    made_or_forked = "forked" if name == "kcmp" else "made"
    assert f"Sandboxes cannot be {made_or_forked} here." in done.stdout


@pytest.mark.deep("restarts")
@pytest.mark.parametrize(("name", "answer", "_finding"), _deep_but(*_QUICK))
def test_where_a_call_is_refused_the_error_says_that_the_host_is_not_capable_and_what_to_do(
    name: str, answer: int, _finding: str
) -> None:
    done = _refusing(name, answer, "-c", _FORK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("made") == (name == "kcmp"), done.stdout
    assert os.strerror(answer) in done.stdout
    assert "hint: " in done.stdout
    assert "--security-opt seccomp=unconfined" in done.stdout


@pytest.mark.deep("restarts")
def test_without_a_host_name_of_its_own_a_sandbox_runs_all_the_same() -> None:
    doctor = _doctor("sethostname", errno.EPERM)
    assert doctor.returncode == 0, doctor.stdout
    assert any(line.split()[:2] == ["--", "hostname"] for line in doctor.stdout.splitlines())
    program = "from ramet import Sandbox\nwith Sandbox() as s: print(s.run_code('6 * 7').value)"
    assert _refusing("sethostname", errno.EPERM, "-c", program).stdout == "42\n"


def test_what_could_not_be_tried_has_no_advice() -> None:
    lines = _doctor("unshare", errno.EPERM).stdout.splitlines()
    untried = [number for number, line in enumerate(lines) if line.startswith("  ?? ")]
    assert len(untried) >= 12
    for number in untried:
        assert lines[number].endswith(": not tried: needs user-namespace")
        assert "fix:" not in lines[number + 1]
    assert sum(line.startswith("  no ") for line in lines) == 1


@pytest.mark.deep("restarts")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lose the capability")
def test_root_without_the_capability_to_map_itself_is_told_so() -> None:
    done = _doctor("capabilities", 0)
    assert done.returncode == 1, done.stdout
    assert "fix: root needs CAP_SETFCAP for this: run as another user, or" in done.stdout
    assert "--cap-add SETFCAP" in done.stdout
    assert "root needs CAP_SETFCAP" in _refusing("capabilities", 0, "-c", _FORK).stdout
