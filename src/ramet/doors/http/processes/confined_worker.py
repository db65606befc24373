"""The worker's process: gives up all privileges, then serves HTTP on a socket that it inherits.

    python -m ramet.doors.http.processes.confined_worker --parent PID --socket FD [--audit FD] --settings JSON

``supervisor`` starts it as a fresh interpreter, not as a fork: after a crash the next worker has another memory
layout, and nothing of the supervisor's memory is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ramet.doors.http.processes.introducer import start_introducer
from ramet.doors.http.processes.keeper import SOCKET_NAME
from ramet.doors.http.settings import ServerSettings
from ramet.isolation.files import interpreter
from ramet.isolation.own_processes import given_up_calls, landlock, powers
from ramet.isolation.own_processes.python_files import LIBRARIES, python_folders
from ramet.transport import resolving
from ramet.web.request_log import Log

_SMALL_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom")

_GOOD_LANDLOCK = 6  # walls off files, TCP and signals


@dataclass(frozen=True, slots=True)
class WorkerWalls:
    """The walls around the worker that this kernel can build."""

    landlock: landlock.Standing
    refusals: bool  # the system call filter

    def tell(self, log: Log) -> None:
        """Log a warning that names each wall that this kernel cannot build."""
        if self.refusals:  # the filter refuses every system call that connects
            missing = [what for what in self.landlock.missing if what != landlock.UNIX_SOCKETS]
        else:
            missing = [*self.landlock.missing, "system calls (seccomp)"]
        good = self.landlock.version >= _GOOD_LANDLOCK and self.refusals
        level = "info" if good else "warning"
        log.event("confined", level, landlock=self.landlock.version, missing="; ".join(missing) or None)


def lock_down(state: str) -> WorkerWalls:
    """Drop capabilities, new privileges, debugging, and all files of the host except Python's own and the state folder.

    The worker cannot connect to anything: it is handed its connections to the engine, see ``introducer``. Call this
    before a second thread exists: each of these walls applies to the calling thread and its descendants only.
    """
    time.tzset()  # reads /etc/localtime
    powers.drop_capabilities()
    powers.hide_memory()
    standing = landlock.restrict(
        landlock.Rights(
            read=(*LIBRARIES, *_SMALL_FILES, *python_folders()),
            keep=(state,),
        )
    )
    return WorkerWalls(standing, given_up_calls.refuse())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="ramet.doors.http.processes.confined_worker", description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--audit", type=int)
    parser.add_argument("--settings", type=json.loads, required=True)
    chosen = parser.parse_args(arguments)
    powers.die_with_parent(chosen.parent)
    settings = ServerSettings(**chosen.settings)
    kept = (chosen.socket,) if chosen.audit is None else (chosen.socket, chosen.audit)
    line = start_introducer(f"{settings.state}/{SOCKET_NAME}", *kept)
    # Import before the walls are up, while every file of the packages can still be read.
    from ramet.doors.http.processes.worker import run_worker

    listener = socket.socket(fileno=chosen.socket)
    os.set_inheritable(chosen.socket, False)
    if chosen.audit is not None:
        os.set_inheritable(chosen.audit, False)
    # Cache what sandboxes will need: behind the walls, /etc/passwd and control groups cannot be read.
    interpreter.find(sys.executable)
    resolving.default_memory_mib()
    lock_down(settings.state).tell(Log(settings.log_format))
    run_worker(settings, listener, line, chosen.audit)


if __name__ == "__main__":
    main()
