"""Child processes of the guest itself: bash cells, `!command`, `%pip`, `os.system`.

Each runs in a process group of its own, so that an interrupt can end all of it, and is waited for by its pid alone:
what it left in the background goes on, as after a script in a terminal.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
from collections.abc import Mapping

from ramet_guest.interrupts import Gate
from ramet_guest.nameless import nameless_file

# Longest single argument: MAX_ARG_STRLEN in Linux is 131072, final NUL included.
MAXIMUM_ARGUMENT_BYTES = 131071
SECONDS_BETWEEN_SIGNALS = 0.3

# Python ignores these; a program expects the defaults.
_DEFAULTED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
_posix_spawn = os.posix_spawn
_waitpid = os.waitpid
_system = os.system
_waitstatus_to_exitcode = os.waitstatus_to_exitcode


class BashMissing(Exception):
    """The file tree has no bash."""


class Processes:
    """Runs programs for cells. All of it is called through the gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def run(
        self,
        arguments: list[str],
        program: str,
        environment: Mapping[str, str] | None = None,
        files: Mapping[int, int] | None = None,
    ) -> int:
        """Runs a program to its end; its exit code, or 128 + n if signal n ended it.

        `files`: descriptors of ours for some of the program's, as output that is not to be shown.
        """
        code = _waitstatus_to_exitcode(self._run(arguments, program, environment, files))
        return code if code >= 0 else 128 - code

    def system(self, command: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> int:
        """Stands in for `os.system`: the C library's ignores SIGINT and waits on, so only a kill would end the cell."""
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
        """The wait status of a program that ran to its end."""
        gate = self._gate
        # An interrupt between the start and the wait would leave the program running with nobody to end it.
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
                gate.held = False
                gate.raise_pending()
                _, status = _waitpid(pid, 0)
            except ChildProcessError:
                # The user's own SIGCHLD handler was quicker; how it ended is lost.
                return 0
            except BaseException:
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
        # Only a script that is too long for an argument goes through memory: `bash -c` reports errors as
        # "bash: line 3", a file by its odd name.
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
    """Interrupts, terminates, kills the process group, until its leader is gone."""
    try:
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
