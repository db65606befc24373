"""Hands connections to the engine to the worker, which may not connect to anything itself.

Landlock of most kernels cannot tell the engine's socket from other unix sockets that the user can reach by path, such
as those of the session bus or a container engine, which run programs for every client. So the worker may not connect at
all. A small process beside it connects: it knows one path, a byte asks it, and it answers with a connected socket.

    worker ── "1" ──▶ introducer ── connect ──▶ engine.sock
       ◀── descriptor ──┘
"""

from __future__ import annotations

import array  # noqa: F401 - send_fds imports it late, when there is no file to be read any more
import asyncio
import os
import resource
import socket
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from ramet.isolation.own_processes import given_up_calls, landlock, powers

_ASK, _HERE, _FAILED = b"1", b"2", b"3"
# At most this many requests are in flight to the introducer; more would overflow its socket buffer.
_ASKED_AT_MOST = 32


def start_introducer(socket_path: str, *not_for_it: int) -> socket.socket:
    """Fork the introducer and return the socket to it. Must be called while the process has one thread.

    ``not_for_it``: descriptors that the introducer closes.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        try:
            ours.close()
            for descriptor in not_for_it:
                os.close(descriptor)
            _introduce(theirs, socket_path, parent)
        finally:
            os._exit(1)
    theirs.close()
    return ours


def _introduce(line: socket.socket, socket_path: str, parent: int) -> NoReturn:
    # The kernel refuses to send descriptors while more of this user's are in flight than the sender's soft limit allows
    # (unix(7), ETOOMANYREFS). The sandboxes of an ordinary user count as that user, so they could use that up.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    powers.die_with_parent(parent)
    powers.drop_capabilities()
    powers.hide_memory()
    # Allow the folder, because a restarted engine makes a new socket there.
    landlock.restrict(landlock.Rights(connect=(os.path.dirname(socket_path),)))
    given_up_calls.refuse(connects=True)
    while line.recv(1):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(socket_path)
                socket.send_fds(line, [_HERE], [connection.fileno()])
        except OSError:
            line.send(_FAILED)
    os._exit(0)


class IntroducerClient:
    """The worker's side. Owns the socket to the introducer, and belongs to a running loop.

    ``lost`` is called when the introducer has died.
    """

    def __init__(self, line: socket.socket, lost: Callable[[], None]) -> None:
        line.setblocking(False)
        self._line = line
        self._lost = lost
        self._waiting: deque[asyncio.Future[socket.socket]] = deque()
        self._asked = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(line, self._answered)

    async def connection(self) -> socket.socket:
        """Return a new connection to the engine. Raises OSError if there is none."""
        waiter: asyncio.Future[socket.socket] = self._loop.create_future()
        self._waiting.append(waiter)
        self._ask()
        try:
            return await waiter
        except asyncio.CancelledError:
            # The answer may have come in the same round of the loop as the cancellation: close its descriptor.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().close()
            raise

    def close(self) -> None:
        self._loop.remove_reader(self._line)
        self._line.close()
        self._fail_all()

    def _ask(self) -> None:
        while self._asked < min(len(self._waiting), _ASKED_AT_MOST):
            self._line.send(_ASK)
            self._asked += 1

    def _answered(self) -> None:
        try:
            answer, descriptors, _, _ = socket.recv_fds(self._line, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            answer, descriptors = b"", []
        if not answer:
            self._loop.remove_reader(self._line)
            self._lost()
            return
        # The introducer answers in order, so this answer is for the request that waits longest.
        self._asked -= 1
        found = socket.socket(fileno=descriptors[0]) if descriptors else None
        waiter = self._waiting.popleft()
        if waiter.done():  # the caller was cancelled meanwhile
            if found is not None:
                found.close()
        elif found is None:
            waiter.set_exception(ConnectionRefusedError("the engine is not there"))
        else:
            waiter.set_result(found)
        self._ask()

    def _fail_all(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(ConnectionAbortedError("the server is stopping"))
