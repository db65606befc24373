"""Connections to one server: counts those in use and keeps some idle ones for the next call."""

from __future__ import annotations

import socket
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from time import monotonic

from ramet.errors import ProtocolError
from ramet.transport.http.messages import HttpAnswer
from ramet.transport.http.tls import Tls

_CONNECTIONS_AT_MOST = 1000
_IDLE_AT_MOST = 100
# Servers close idle connections: uvicorn after five seconds unless configured otherwise, and then it says so in a
# header. A request that meets a closing connection may not be repeatable, so we drop a connection before the server
# does.
_IDLE_SECONDS = 4.0
_READ_BYTES = 64 * 1024
# The end of an answer is short; do not keep reading from a server that sends more.
_READS_AT_MOST = 4


class ServerConnection:
    """A non-blocking socket, with or without TLS, and the rest of the previous answer."""

    __slots__ = ("__weakref__", "_good_until", "answer", "sock", "tls")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.tls: Tls | None = None
        self.answer: HttpAnswer | None = None
        self._good_until = 0.0

    def rest(self) -> None:
        """Mark the connection as idle from now on."""
        assert self.answer is not None
        self._good_until = monotonic() + _idle_seconds(self.answer)

    def usable(self) -> bool:
        """Whether it is open and the previous answer is complete.

        A connection found closed here has carried no part of the next request, so opening another is safe.
        """
        if monotonic() > self._good_until:
            return False
        try:
            for _ in range(_READS_AT_MOST):
                data: bytes | None = self.sock.recv(_READ_BYTES)
                if data and self.tls is not None:
                    data = self.tls.decrypt(data)
                    if data is None:
                        continue  # a session ticket
                # The last bytes of an answer often arrive a moment after its final frame, when the caller no longer
                # reads.
                if not data or self.answer is None or self.answer.complete:
                    return False
                self.answer.feed(data)
        except BlockingIOError:
            return self.answer is not None and self.answer.complete
        except (OSError, ProtocolError):
            pass
        return False

    def close(self) -> None:
        self.sock.close()


def _idle_seconds(answer: HttpAnswer) -> float:
    """Return how long the server promises to keep it, less a second for the network."""
    for promise in answer.headers.get(b"keep-alive", b"").split(b","):
        name, _, value = promise.strip().partition(b"=")
        if name.lower() == b"timeout" and value.isdigit() and len(value) < 6:
            return float(value) - 1
    return _IDLE_SECONDS


class ServerConnections:
    """All connections of this process to one server. Owns the idle ones; safe to use from several threads."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may make a call while its thread holds it
        # Used without the lock: append and pop of a deque are atomic, and a connection belongs to the thread that
        # popped it.
        self._idle: deque[ServerConnection] = deque()
        self._in_use = 0
        self._waiting: deque[Future[None]] = deque()
        # Includes those in use: after a fork the child must close its copies of all of them.
        self._all: weakref.WeakSet[ServerConnection] = weakref.WeakSet()

    def enter(self) -> Future[None] | None:
        """Take a place for one more connection in use.

        Return None if there is one, or a future that completes when there is.
        """
        with self._lock:
            if self._in_use < _CONNECTIONS_AT_MOST:
                self._in_use += 1
                return None
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    def exit(self) -> None:
        """Release a place. It goes to the caller that has waited longest."""
        with self._lock:
            # The place is handed over under the lock and never becomes free in between, so that `enter` cannot overtake
            # the queue.
            while self._waiting:
                turn = self._waiting.popleft()
                # False if the waiting call was cancelled meanwhile: try the next one.
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._in_use -= 1

    def take(self) -> ServerConnection | None:
        """Return an idle connection that is still good, the last used first, or None."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.usable():
                connection.answer = None
                return connection
            connection.close()

    def add(self, connection: ServerConnection) -> None:
        with self._lock:
            self._all.add(connection)

    def give_back(self, connection: ServerConnection) -> None:
        """Keep a connection whose answer is over. Its last bytes may still arrive; `usable` reads them."""
        connection.rest()
        self._idle.append(connection)
        if len(self._idle) > _IDLE_AT_MOST:
            try:
                self._idle.popleft().close()
            except IndexError:
                pass  # another thread took it meanwhile

    def close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def forked(self) -> None:
        """Close a forked child's copies of the parent's connections, and start over.

        The lock is a new one too: another thread may have held the old one at the fork.
        """
        for connection in list(self._all):
            connection.close()
        self._reset()
