"""Runs some tests in an environment, for a bounded time, and leaves no process of theirs behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.copies import CHECKOUT, Environment

# What is shown is that the quick tests are enough.
TIER = ("--tier=fast",)
_LEAVE_SECONDS = 3.0  # for those who end by themselves when their owner has
_LOOK_SECONDS = 0.02
_DESCRIPTORS = 1024  # the usual limit of a person's session
_PR_SET_CHILD_SUBREAPER = 36
_ALL_PASSED, _SOME_FAILED, _BROKEN_OFF, _MISUSED, _NONE_FOUND = 0, 1, (2, 3), 4, 5
_FAILURE = re.compile(r"^(?:FAILED|ERROR) tests/\S+?::(\w+)", re.MULTILINE)
_SKIPPED = re.compile(r"^SKIPPED \[\d+\] \S+ (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """How a run of tests ended."""

    exit_code: int | None  # of pytest; None: it was ended at its deadline
    output: str
    seconds: float

    @property
    def hung(self) -> bool:
        return self.exit_code is None

    @property
    def passed(self) -> bool:
        return self.exit_code == _ALL_PASSED

    @property
    def failed(self) -> bool:
        """Tests have failed, or the process that ran them has died."""
        return not self.passed and self.problem is None

    @property
    def problem(self) -> str | None:
        """Why this says nothing about the tests."""
        if self.exit_code in _BROKEN_OFF:
            return "no test was run: something cannot be imported any more"
        if self.exit_code in (_MISUSED, _NONE_FOUND):
            return "no such test is in the fast tier"
        return None

    @property
    def failures(self) -> list[str]:
        """Names of functions."""
        return list(dict.fromkeys(_FAILURE.findall(self.output)))

    @property
    def skipped(self) -> str | None:
        """Why no test was run at all, if none was."""
        if not self.passed or re.search(r"\d+ passed", self.output):
            return None
        reasons = _SKIPPED.findall(self.output)
        return reasons[0] if reasons else "no test was run"


def adopt_orphans() -> None:
    """Whoever is left behind by a child of this process becomes a child of this process, which can end it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS if most < 0 else min(_DESCRIPTORS, most), most))


def run_tests(environment: Environment, tests: Sequence[str], seconds: float, *options: str) -> Run:
    """For so long at most. Only in a process that has adopted orphans and has no other children."""
    began = time.monotonic()
    # Not below the environment: paths of unix sockets are short.
    place = Path(tempfile.mkdtemp(prefix="m-"))
    try:
        with open(place / "output", "w+", encoding="utf-8", errors="replace") as output:
            command = [str(environment.python), "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
            pytest = subprocess.Popen(
                [*command, f"--basetemp={place / 't'}", *TIER, *options, *(f"tests/{test}" for test in tests)],
                cwd=CHECKOUT,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(place)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                exit_code = pytest.wait(seconds)
            except subprocess.TimeoutExpired:
                exit_code = None
            finally:
                _end(pytest)
            output.seek(0)
            return Run(exit_code, output.read(), time.monotonic() - began)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _end(pytest: subprocess.Popen[bytes]) -> None:
    """End what a run has started: its session, and those who have left it."""
    if pytest.poll() is None:
        os.killpg(pytest.pid, signal.SIGKILL)
        pytest.wait()
    until = time.monotonic() + _LEAVE_SECONDS
    while children := _children():
        for child in children:
            if time.monotonic() > until:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(_LOOK_SECONDS)


def _children() -> list[int]:
    return [
        int(child)
        for task in Path("/proc/self/task").iterdir()
        for child in task.joinpath("children").read_text("ascii").split()
    ]
