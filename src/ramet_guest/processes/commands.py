"""Child processes that the guest starts for cells: bash cells, `!command`, `%pip`, `os.system`.

Each runs in a process group of its own, so that an interrupt can end all of it. The guest waits for the leader's pid
only: processes that it left in the background continue, as after a script in a terminal.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
from collections.abc import Mapping

from ramet_guest.cells.interrupts import UserCodeGate
from ramet_guest.processes.nameless import nameless_file

# Longest single argument: MAX_ARG_STRLEN in Linux is 131072, including the final NUL.
MAXIMUM_ARGUMENT_BYTES = 131071
SECONDS_BETWEEN_SIGNALS = 0.3

# Python ignores these signals, and a child would inherit that; programs expect the defaults.
_DEFAULTED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
_posix_spawn = os.posix_spawn
_waitpid = os.waitpid
_system = os.system
_waitstatus_to_exitcode = os.waitstatus_to_exitcode


class BashMissing(Exception):
    """Raised when the file tree has no bash."""


class Processes:
    """Runs programs for cells. Every caller is inside the gate."""

    def __init__(self, gate: UserCodeGate) -> None:
        self._gate = gate

    def run(
        self,
        arguments: list[str],
        program: str,
        environment: Mapping[str, str] | None = None,
        files: Mapping[int, int] | None = None,
    ) -> int:
        """Runs a program to its end. Returns its exit code, or 128 + n if signal n ended it.

        `files` maps the program's descriptors to ours, for output that is not to be shown.
        """
        code = _waitstatus_to_exitcode(self._run(arguments, program, environment, files))
        return code if code >= 0 else 128 - code

    def system(self, command: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> int:
        """Replaces `os.system`.

        The C library's version ignores SIGINT while it waits, so only a kill would end the cell.
        """
        if threading.get_ident() != threading.main_thread().ident:
            return _system(command)
        return self._run(["sh", "-c", os.fsdecode(command)], "/bin/sh", None)

    def _run(
        self,
        arguments: list[str],
        program: str,
        environment: Mapping[str, str] | None,
        files: Mapping[int, int] | None = None,
    ) -> int:
        """Runs a program to its end and returns its wait status."""
        gate = self._gate
        # Defer interrupts: one between the spawn and the wait would leave the program running, with no code left to end
        # it.
        gate.held = True
        try:
            pid = _posix_spawn(
                program,
                arguments,
                os.environ if environment is None else environment,
                setpgroup=0,
                setsigdef=_DEFAULTED_SIGNALS,
                file_actions=[(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in (files or {}).items()],
            )
            try:
                # From here on an interrupt raises into this `try`, whose handler ends the program. One that arrived
                # meanwhile is raised now, because the wait below would not see it.
                gate.held = False
                gate.raise_pending()
                _, status = _waitpid(pid, 0)
            except ChildProcessError:
                # The user's own SIGCHLD handler has already reaped it; its status is lost.
                return 0
            except BaseException:
                # A second interrupt must not cut the cleanup short.
                gate.held = True
                end_group(pid)
                gate.pending = None
                raise
        finally:
            gate.held = False
        return status

    def run_bash(self, script: str, files: Mapping[int, int] | None = None) -> int:
        """Runs a script in a fresh bash."""
        bash = bash_path()
        # Only a script that is too long for an argument goes through a file in memory: `bash -c` reports errors as
        # "bash: line 3", while a file would appear under its odd name.
        encoded = os.fsencode(script)
        if len(encoded) < MAXIMUM_ARGUMENT_BYTES:
            return self.run(["bash", "-c", script], bash, files=files)
        descriptor = nameless_file("cell")
        try:
            view = memoryview(encoded)
            while view:
                view = view[os.write(descriptor, view) :]
            os.set_inheritable(descriptor, True)
            return self.run(["bash", f"/dev/fd/{descriptor}"], bash, files=files)
        finally:
            os.close(descriptor)


def end_group(pid: int) -> None:
    """Sends SIGINT, SIGTERM and SIGKILL to the process group until its leader is gone, then reaps it."""
    try:
        # A pidfd lets us wait with a timeout and without reaping, so that the pid cannot be reused between two signals.
        descriptor = os.pidfd_open(pid)
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                os.killpg(pid, number)
                if ended.poll(SECONDS_BETWEEN_SIGNALS * 1000):
                    break
        finally:
            os.close(descriptor)
        _waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def bash_path() -> str:
    for path in ("/bin/bash", "/usr/bin/bash"):
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("bash")
    if found is None:
        raise BashMissing("this file tree has no bash\n\nhint: mount one, or use Python cells")
    return found
