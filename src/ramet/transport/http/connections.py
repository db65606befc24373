"""Connections to one server: those in use are counted, some idle ones are kept for the next call."""

from __future__ import annotations

import socket
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from time import monotonic

from ramet.errors import ProtocolError
from ramet.transport.http.messages import Answer
from ramet.transport.http.tls import Tls

_CONNECTIONS_AT_MOST = 1000
_IDLE_AT_MOST = 100
# Servers close connections that idle: uvicorn after five seconds unless told otherwise, and then says so in a header. A
# request that meets a closing connection cannot be sent again, so an old one is not worth its handshake.
_IDLE_SECONDS = 4.0
_READ_BYTES = 64 * 1024
# The end of an answer is short; a server that goes on after it is not worth listening to.
_READS_AT_MOST = 4


class Connection:
    """A socket that does not block, with TLS on it or not, and what is still to come of the answer before."""

    __slots__ = ("__weakref__", "_good_until", "answer", "sock", "tls")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.tls: Tls | None = None
        self.answer: Answer | None = None
        self._good_until = 0.0

    def rest(self) -> None:
        """Nobody uses it from now on."""
        assert self.answer is not None
        self._good_until = monotonic() + _idle_seconds(self.answer)

    def usable(self) -> bool:
        """It is open, and nothing is left of the answer before. What is found closed here has seen no request yet."""
        if monotonic() > self._good_until:
            return False
        try:
            for _ in range(_READS_AT_MOST):
                data: bytes | None = self.sock.recv(_READ_BYTES)
                if data and self.tls is not None:
                    data = self.tls.decrypt(data)
                    if data is None:
                        continue  # a ticket for the next session
                # The end of an answer often comes a moment after its final frame, by which time nobody waited for it.
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


def _idle_seconds(answer: Answer) -> float:
    """As long as the server promises, less a second for the way."""
    for promise in answer.headers.get(b"keep-alive", b"").split(b","):
        name, _, value = promise.strip().partition(b"=")
        if name.lower() == b"timeout" and value.isdigit() and len(value) < 6:
            return float(value) - 1
    return _IDLE_SECONDS


class Connections:
    """All connections of this process to one server. Owns the idle ones; safe to use from several threads."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come in while its thread holds it
        self._idle: deque[Connection] = deque()
        self._in_use = 0
        self._waiting: deque[Future[None]] = deque()
        # Also those in use: after a fork the child must let go of all of them.
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()

    def enter(self) -> Future[None] | None:
        """Room for one more connection in use: None if there is, or a future that ends when there is."""
        with self._lock:
            if self._in_use < _CONNECTIONS_AT_MOST:
                self._in_use += 1
                return None
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    def exit(self) -> None:
        """Whoever has entered leaves; the room goes to whoever waits longest."""
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._in_use -= 1

    def take(self) -> Connection | None:
        """An idle connection that is still good, the last used first."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.usable():
                connection.answer = None
                return connection
            connection.close()

    def add(self, connection: Connection) -> None:
        with self._lock:
            self._all.add(connection)

    def give_back(self, connection: Connection) -> None:
        """A connection whose answer is over, though its last bytes may not have come yet."""
        connection.rest()
        self._idle.append(connection)
        if len(self._idle) > _IDLE_AT_MOST:
            try:
                self._idle.popleft().close()
            except IndexError:
                pass  # taken by another thread meanwhile

    def close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def forked(self) -> None:
        """In a forked child: the parent's connections are not ours."""
        for connection in list(self._all):
            connection.close()
        self._reset()
