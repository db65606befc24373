"""Guests that begin with their modules loaded: a process has loaded them once, and forks for each guest.

Most tests are about what a guest does, and loading IPython takes longer than that. After the fork a guest runs what it
runs in a fresh interpreter: `boot.main`, with its descriptors, environment and folder in place.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.guest import nursery_process
from tests.guest.nursery_process import CONNECTION, MOST_BYTES


class Nursery:
    """Asks that process for guests, and how they ended."""

    def __init__(self, entry: Path) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        null = os.open(os.devnull, os.O_RDWR)
        targets = ((null, 0), (null, 1), (theirs.fileno(), CONNECTION))
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-X", "utf8", nursery_process.__file__, str(entry)],
            {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb"},
            file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in targets],
            setpgroup=0,  # Ctrl-C is not for it
        )
        os.close(null)
        theirs.close()

    def start(self, options: str, environment: Mapping[str, str], targets: Sequence[tuple[int, int]]) -> int:
        """`targets`: descriptors, each with the number that it has in the guest. Returns the guest's process id."""
        asked = {"options": options, "environment": dict(environment), "numbers": [number for _, number in targets]}
        return self._answer(asked, [descriptor for descriptor, _ in targets])

    def status(self, pid: int) -> int:
        """Of a guest that has ended, as `os.waitpid` has it."""
        return self._answer({"ended": pid}, [])

    def close(self) -> None:
        """Its process ends then."""
        self._connection.close()

    def _answer(self, asked: Mapping[str, object], descriptors: Sequence[int]) -> int:
        with self._one_at_a_time:
            socket.send_fds(self._connection, [json.dumps(asked).encode()], descriptors)
            answer = self._connection.recv(MOST_BYTES)
        assert answer, "the process that starts guests has ended"
        return int(answer)


@cache
def nursery(entry: Path) -> Nursery:
    """One for all tests of this process."""
    made = Nursery(entry)
    atexit.register(made.close)
    return made
