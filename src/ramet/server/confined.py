"""The worker's process: it gives up all powers, then serves HTTP on a socket that it was given.

    python -m ramet.server.confined --parent PID --socket FD [--audit FD] --settings JSON

Started by ``supervising`` as a fresh interpreter, not as a fork: after a crash a worker has another memory layout than
the one before, and nothing of the supervisor's is in it.
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

from ramet.isolation import interpreter, landlock, powers, refusals
from ramet.isolation.python_files import LIBRARIES, python_folders
from ramet.server.introductions import start_introducer
from ramet.server.logs import Log
from ramet.server.settings import ServerSettings
from ramet.transport import resolving
from ramet.transport.keeper import SOCKET_NAME

_SMALL_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom")

_GOOD_LANDLOCK = 6  # files, TCP and signals are walled off


@dataclass(frozen=True, slots=True)
class Walls:
    """What stands around the worker."""

    landlock: landlock.Standing
    refusals: bool  # the filter of system calls

    def tell(self, log: Log) -> None:
        """A wall that this kernel cannot build is named."""
        if self.refusals:  # of system calls: none that connects is left
            missing = [what for what in self.landlock.missing if what != landlock.UNIX_SOCKETS]
        else:
            missing = [*self.landlock.missing, "system calls (seccomp)"]
        good = self.landlock.version >= _GOOD_LANDLOCK and self.refusals
        level = "info" if good else "warning"
        log.event("confined", level, landlock=self.landlock.version, missing="; ".join(missing) or None)


def lock_down(state: str) -> Walls:
    """No capability, no new privilege, no look inside; of the host only Python's own files, and the state folder. No
    connection is made: those to the engine are handed over, see ``introductions``.

    To be called before there is a second thread: all of it counts for threads, not for processes.
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
    return Walls(standing, refusals.refuse())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="ramet.server.confined", description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--audit", type=int)
    parser.add_argument("--settings", type=json.loads, required=True)
    chosen = parser.parse_args(arguments)
    powers.die_with_parent(chosen.parent)
    settings = ServerSettings(**chosen.settings)
    kept = (chosen.socket,) if chosen.audit is None else (chosen.socket, chosen.audit)
    line = start_introducer(f"{settings.state}/{SOCKET_NAME}", *kept)
    # Before the walls are up: most of what will be needed is loaded then.
    from ramet.server.worker import run_worker

    listener = socket.socket(fileno=chosen.socket)
    os.set_inheritable(chosen.socket, False)
    if chosen.audit is not None:
        os.set_inheritable(chosen.audit, False)
    # For the sandboxes to come; remembered, as /etc/passwd and control groups are out of sight later.
    interpreter.find(sys.executable)
    resolving.default_memory_mib()
    lock_down(settings.state).tell(Log(settings.log_format))
    run_worker(settings, listener, line, chosen.audit)


if __name__ == "__main__":
    main()
