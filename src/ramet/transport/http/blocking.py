"""Carries out calls over HTTP in the caller's own thread."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from contextlib import suppress
from time import perf_counter
from typing import TypeVar

from ramet.errors import RametError
from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode
from ramet.transport.http import steps
from ramet.transport.http.call import Call, Errand
from ramet.transport.http.server import Server
from ramet.transport.http.sockets import prepare, something_to_read
from ramet.transport.http.steps import Dial, Pause, Step, Steps, Wait, Watched

Returned = TypeVar("Returned")

# As for an engine of one's own, see ``embedded_links``, though a server takes longer.
_MOMENT_SECONDS = 0.0005
_QUICK_SECONDS = 0.002
_WORTH_IT = len(os.sched_getaffinity(0)) > 1
# A call that is given up is told so to the server, but nobody waits for long until it knows.
_ERRAND_SECONDS = 5.0
# To learn what a call made may take as long as the call; every ten seconds the server says that it is there.
_UNDO_SECONDS = 30.0


class HttpLink:
    """One call."""

    __slots__ = ("_call", "_seconds", "_server")

    def __init__(self, server: Server, *, key: str | None = None, urgent: bool = False) -> None:
        self._server = server
        self._call = Call(server, key=key, urgent=urgent)
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
            # Imported late: it imports this module.
            from ramet.transport.http.janitor import janitor

            # In another thread, so that a second Ctrl-C cannot break it off. Waited for, so that what the caller does
            # next comes after it.
            janitor.run_errand(self._server, errand).wait(_ERRAND_SECONDS)

    def leave_quietly(self) -> None:
        """Without errands: for those themselves."""
        self._call.leave()

    def _carry_out(self, todo: Steps[Returned]) -> Returned:
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
            todo.close()

    def _do(self, step: Step) -> object:
        if isinstance(step, int):
            return self._receive(step)
        if isinstance(step, bytes):
            return self._send(memoryview(step))
        if isinstance(step, Watched):
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
        sock = self._socket
        sent = 0
        while sent < len(view):
            if watch and something_to_read(sock):
                break
            try:
                sent += sock.send(view[sent:] if sent else view)
            except BlockingIOError:
                self._wait(sock, select.POLLOUT | select.POLLIN if watch else select.POLLOUT)
        return sent

    def _receive(self, count: int) -> bytes:
        """Look for the answer for a moment before sleeping: waking an idle processor costs as much as a short cell."""
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
        if not poll.poll((self._seconds or steps.SILENCE_SECONDS) * 1000):
            raise TimeoutError


def run_errand(server: Server, errand: Errand) -> None:
    """Tell the server of a call that was given up. Whether it can be reached is not our caller's trouble any more."""
    with suppress(RametError, OSError):
        answer = ask_urgently(server, errand.request, errand.key)
        if errand.key is not None:
            # The call again, under its key: its answer tells what it had made.
            for some_id in _made(answer):
                ask_urgently(server, _closing(some_id))


def ask_urgently(server: Server, request: bytes, key: str | None = None) -> Frame:
    """A small call beside all others, with little patience."""
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
