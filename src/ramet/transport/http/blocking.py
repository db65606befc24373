"""Carries out calls over HTTP in the caller's own thread."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from contextlib import suppress
from time import monotonic, perf_counter
from typing import TypeVar

from ramet.errors import RametError
from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode
from ramet.transport.http import steps
from ramet.transport.http.call import Errand, HttpCall
from ramet.transport.http.server import Server
from ramet.transport.http.sockets import prepare, something_to_read
from ramet.transport.http.steps import Dial, Pause, SocketWait, Step, Steps, Wait

Returned = TypeVar("Returned")

# As for an embedded engine, see ``embedded_links``; a server takes longer.
_MOMENT_SECONDS = 0.0005
_QUICK_SECONDS = 0.002
_WORTH_IT = len(os.sched_getaffinity(0)) > 1
_NOTICE_SIGNALS_SECONDS = 1.0
# How long the caller waits for the server to learn that a call was given up.
_ERRAND_SECONDS = 5.0
# Learning what a call made may take as long as the call itself; the server sends a heartbeat every ten seconds.
_UNDO_SECONDS = 30.0


class HttpLink:
    """One call."""

    __slots__ = ("_call", "_seconds", "_server")

    def __init__(self, server: Server, *, key: str | None = None, urgent: bool = False) -> None:
        self._server = server
        self._call = HttpCall(server, key=key, urgent=urgent)
        self._seconds = None if not urgent else _ERRAND_SECONDS if key is None else _UNDO_SECONDS

    def send(self, data: bytes) -> None:
        todo = self._call.send(data)
        if todo is not None:
            self._carry_out(todo)

    def receive(self) -> Frame:
        return self._carry_out(self._call.receive())

    def taken(self) -> None:
        self._call.taken()

    def leave(self) -> None:
        errand = self._call.leave()
        if errand is not None and not sys.is_finalizing():
            # Imported late, because that module imports this one.
            from ramet.transport.http.janitor import janitor

            # In another thread, so that a second Ctrl-C cannot interrupt it. Waited for, so that the server sees it
            # before whatever the caller does next.
            janitor.run_errand(self._server, errand).wait(_ERRAND_SECONDS)

    def leave_quietly(self) -> None:
        """Leave without cleanup. Used by the cleanup itself."""
        self._call.leave()

    def _carry_out(self, todo: Steps[Returned]) -> Returned:
        """Drive a generator of steps to its end and return its value. Errors of the socket go back into it."""
        try:
            step = next(todo)
            while True:
                try:
                    given = self._do(step)
                except OSError as error:
                    step = todo.throw(error)
                else:
                    step = todo.send(given)
        except StopIteration as stop:
            returned: Returned = stop.value
            return returned
        finally:
            # After KeyboardInterrupt the generator is suspended at a step; closing it runs its cleanup now.
            todo.close()

    def _do(self, step: Step) -> object:
        if isinstance(step, int):
            return self._receive(step)
        if isinstance(step, bytes):
            return self._send(memoryview(step))
        if isinstance(step, SocketWait):
            return self._send(step.data, watch=True)
        if isinstance(step, Dial):
            timeout = min(steps.CONNECT_SECONDS, self._seconds or steps.CONNECT_SECONDS)
            return prepare(socket.create_connection((step.host, step.port), timeout))
        if isinstance(step, Wait):
            return step.future.result()
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        raise TypeError(step)

    @property
    def _socket(self) -> socket.socket:
        assert self._call.connection is not None
        return self._call.connection.sock

    def _send(self, view: memoryview, watch: bool = False) -> int:
        """Send all of it; with ``watch``, stop as soon as something can be read. Return how many bytes were sent."""
        sock = self._socket
        sent = 0
        while sent < len(view):
            # Checked before each write: a server that refuses the request answers early, and the rest need not be sent.
            if watch and something_to_read(sock):
                break
            try:
                sent += sock.send(view[sent:] if sent else view)
            except BlockingIOError:
                self._wait(sock, select.POLLOUT | select.POLLIN if watch else select.POLLOUT)
        return sent

    def _receive(self, count: int) -> bytes:
        """Poll for the answer for a moment before sleeping: waking an idle processor takes as long as a short cell."""
        sock, server = self._socket, self._server
        began = perf_counter()
        if server.quick:
            while perf_counter() - began < _MOMENT_SECONDS:
                try:
                    return sock.recv(count)
                except BlockingIOError:
                    os.sched_yield()
        while True:
            self._wait(sock, select.POLLIN)
            with suppress(BlockingIOError):
                data = sock.recv(count)
                server.quick = _WORTH_IT and perf_counter() - began < _QUICK_SECONDS
                return data

    def _wait(self, sock: socket.socket, events: int) -> None:
        poll = select.poll()
        poll.register(sock, events)
        end = monotonic() + (self._seconds or steps.SILENCE_SECONDS)
        # Woken once a second, so that Python runs signal handlers: ``embedded_links.wake_to_notice_signals`` says why.
        while not poll.poll(_NOTICE_SIGNALS_SECONDS * 1000):
            if monotonic() >= end:
                raise TimeoutError


def run_errand(server: Server, errand: Errand) -> None:
    """Tell the server about a call that was given up.

    Errors are ignored: the caller no longer depends on the outcome.
    """
    with suppress(RametError, OSError):
        answer = ask_urgently(server, errand.request, errand.key)
        if errand.key is not None:
            # This was the same call again, under its key: the answer says what it had made.
            for some_id in _made(answer):
                ask_urgently(server, _closing(some_id))


def ask_urgently(server: Server, request: bytes, key: str | None = None) -> Frame:
    """Make a small call that skips the queue for connections and has short timeouts."""
    link = HttpLink(server, key=key, urgent=True)
    try:
        link.send(request)
        return link.receive()
    finally:
        link.leave_quietly()


def _closing(some_id: str) -> bytes:
    if some_id.startswith("snp_"):
        return encode(calls.DROP, {"snapshot": some_id})
    return encode(calls.CLOSE, {"sandbox": some_id})


def _made(answer: Frame) -> list[str]:
    children = answer.header.get("children")
    made = [answer.header, *(children if isinstance(children, list) else ())]
    return [child["id"] for child in made if isinstance(child, dict) and isinstance(child.get("id"), str)]
