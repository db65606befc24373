"""Connections to the engine for a process that may connect to nothing by itself.

Landlock of most kernels does not tell the engine's socket from others that a user can reach by their paths, such as
those of the session bus or a container engine, which run programs for whoever asks. So the worker may not connect at
all. A small process beside it does that: it knows one path, is asked with a byte, and answers with a connected socket.

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

from ramet.isolation import landlock, powers, refusals

_ASK, _HERE, _FAILED = b"1", b"2", b"3"
# Of those who wait so many are told to the introducer at once: more would not fit into the line.
_ASKED_AT_MOST = 32


def start_introducer(socket_path: str, *not_for_it: int) -> socket.socket:
    """Fork it, while there is one thread; gives the line to it. ``not_for_it``: descriptors that it closes."""
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
    # The kernel refuses to send descriptors while more of this user are under way than the sender's soft limit, and
    # sandboxes of an ordinary user count as that user.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    powers.die_with_parent(parent)
    powers.drop_capabilities()
    powers.hide_memory()
    # Of a folder, as the socket is another one when the engine was started again.
    landlock.restrict(landlock.Rights(connect=(os.path.dirname(socket_path),)))
    refusals.refuse(connects=True)
    while line.recv(1):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(socket_path)
                socket.send_fds(line, [_HERE], [connection.fileno()])
        except OSError:
            line.send(_FAILED)
    os._exit(0)


class Introductions:
    """The worker's side. Owns the line; of a running loop. ``lost`` is called when nobody can be reached any more."""

    def __init__(self, line: socket.socket, lost: Callable[[], None]) -> None:
        line.setblocking(False)
        self._line = line
        self._lost = lost
        self._waiting: deque[asyncio.Future[socket.socket]] = deque()
        self._asked = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(line, self._answered)

    async def connection(self) -> socket.socket:
        """A new connection to the engine; OSError if there is none to be had."""
        waiter: asyncio.Future[socket.socket] = self._loop.create_future()
        self._waiting.append(waiter)
        self._ask()
        try:
            return await waiter
        except asyncio.CancelledError:
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
        self._asked -= 1
        found = socket.socket(fileno=descriptors[0]) if descriptors else None
        waiter = self._waiting.popleft()
        if waiter.done():  # given up meanwhile
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
