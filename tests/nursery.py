"""Processes that begin with their modules loaded: another process has loaded them once, and forks for each of them.

For tests of what a guest or a command does. Loading its modules takes longer than that, and is the subject of others.
After the fork runs what a fresh interpreter runs, with descriptors, environment and folder in place.
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

from tests import nursery_process
from tests.nursery_process import CONNECTION, MOST_BYTES


class Nursery:
    """Asks that process for others, and how they ended."""

    def __init__(self, options: Sequence[str], kind: Sequence[str], environment: Mapping[str, str]) -> None:
        """`options` and `environment` are those of its interpreter; `kind`: what it makes."""
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        null = os.open(os.devnull, os.O_RDWR)
        targets = ((null, 0), (null, 1), (theirs.fileno(), CONNECTION))
        os.posix_spawn(
            sys.executable,
            [sys.executable, *options, nursery_process.__file__, *kind],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in targets],
            setpgroup=0,  # Ctrl-C is not for it
        )
        os.close(null)
        theirs.close()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], targets: Sequence[tuple[int, int]]
    ) -> int:
        """`targets`: descriptors, each with the number that it has in the process. Returns the process id."""
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": os.getcwd(),
            "numbers": [number for _, number in targets],
        }
        return self._answer(request, [descriptor for descriptor, _ in targets])

    def status(self, pid: int) -> int:
        """Of a process that has ended, as `os.waitpid` has it."""
        return self._answer({"ended": pid}, [])

    def close(self) -> None:
        """Its process ends then."""
        self._connection.close()

    def _answer(self, request: Mapping[str, object], descriptors: Sequence[int]) -> int:
        with self._one_at_a_time:
            socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
            answer = self._connection.recv(MOST_BYTES)
        assert answer, "the process that starts others has ended"
        return int(answer)


@cache
def guests(entry: str) -> Nursery:
    """Makes guests for all tests of this process."""
    plain = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb"}
    return _closed_in_the_end(Nursery(["-P", "-X", "utf8"], ["guest", entry], plain))


@cache
def commands() -> Nursery:
    """Runs `ramet` for all tests of this process."""
    return _closed_in_the_end(Nursery([], ["command"], os.environ))


def _closed_in_the_end(made: Nursery) -> Nursery:
    atexit.register(made.close)
    return made
