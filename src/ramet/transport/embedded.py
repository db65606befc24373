"""The engine of this process: started on first use, shared by all its sandboxes, ended with it.

State of the module is one engine and its lock. A forked child forgets both: its parent's engine is not its own.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ramet.errors import EngineClosed, EngineLost, ForkedProcess, HostNotCapable
from ramet.protocol import calls
from ramet.transport.embedded_links import AsyncLink, BlockingLink

_IDLE_CONNECTIONS_AT_MOST = 8
_CLOSE_SECONDS = 5.0


class EngineProcess(Protocol):
    """What is needed to know of the engine's process."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None) -> int | None: ...
    def kill(self) -> None: ...
    def stderr_tail(self) -> str: ...


StartProcess = Callable[[socket.socket], EngineProcess]


def _start_process(primary: socket.socket) -> EngineProcess:
    # Imported when needed: a process that only catches our errors never starts an engine.
    from ramet.isolation.launch import start_engine

    return start_engine(primary, engine_options)


# More options of the engine's command line, for tests that want shorter waits; read when an engine starts.
engine_options: list[str] = []


class EmbeddedEngine:
    """A running engine and the connections to it. Safe to use from several threads.

    Connections carry one call at a time. Those of blocking and of asynchronous callers are kept apart, since a socket
    is in one of the two modes.
    """

    remote = False

    def __init__(self, start: StartProcess) -> None:
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: dict[bool, list[socket.socket]] = {True: [], False: []}
        # Every connection, also those in use: after a fork the child must let go of all of them.
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._ended: str | None = None
        self._lost = False
        # Calls are answered at once these days; kept here by blocking callers, who then look before they sleep.
        self.quick = False
        # Names that snapshots of this engine were saved as; they go with it.
        self.saved_templates: set[str] = set()
        self._primary, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = start(theirs)
            except BaseException:
                self._primary.close()
                raise
        _engines.add(self)

    def __repr__(self) -> str:
        return f"<EmbeddedEngine pid {self._process.pid}, {self._ended or 'running'}>"

    @property
    def running(self) -> bool:
        return self._ended is None and os.getpid() == self._owner_pid

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def place(self) -> object:
        return self

    def check(self) -> None:
        """Raise if calls cannot be made from here."""
        if os.getpid() != self._owner_pid:
            raise ForkedProcess(
                f"this sandbox belongs to process {self._owner_pid}, and this is process {os.getpid()}",
                hint="make a new Sandbox() in the child; it gets an engine of its own",
            )
        if self._ended is not None:
            raise (EngineLost if self._lost else EngineClosed)(self._ended)

    def link(self) -> BlockingLink:
        return BlockingLink(self, self.connect(blocking=True))

    def async_link(self) -> AsyncLink:
        return AsyncLink(self, self.connect(blocking=False))

    def connect(self, blocking: bool) -> socket.socket:
        """A connection that nobody else uses: an idle one, or a new one."""
        self.check()
        with self._lock:
            if self._idle[blocking]:
                return self._idle[blocking].pop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                socket.send_fds(self._primary, [calls.CONNECT], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise self.lost() from error
        ours.setblocking(blocking)
        with self._lock:
            self._connections.add(ours)
        return ours

    def give_back(self, connection: socket.socket, blocking: bool) -> None:
        """Return a connection whose call has ended well. One whose call was broken off is closed instead."""
        with self._lock:
            idle = self._idle[blocking]
            if self._ended is None and len(idle) < _IDLE_CONNECTIONS_AT_MOST:
                idle.append(connection)
                return
        connection.close()

    def forget(self, some_id: str, kind: int) -> None:
        """Close a sandbox or snapshot, whichever has the id, without waiting for it or learning of it."""
        if self.running:
            with suppress(OSError):
                self._primary.send(calls.FORGET + some_id.encode("ascii"), socket.MSG_DONTWAIT)

    def lost(self) -> EngineLost | EngineClosed | HostNotCapable:
        """The error to raise when the engine has hung up, with all that can be learnt about why."""
        with self._lock:
            if self._ended is None:
                self._lost = True
                self._ended = self._obituary()
                self._let_go()
        return self._not_capable() or (EngineLost if self._lost else EngineClosed)(self._ended)

    def _not_capable(self) -> HostNotCapable | None:
        """The error for an engine that never stood, because the host refused a step of its launch."""
        from ramet.isolation import doctor
        from ramet.isolation.launch import NOT_CAPABLE

        if self._process.wait(0.0) != NOT_CAPABLE:
            return None
        return HostNotCapable(
            f"this host does not let us build a sandbox: {self._process.stderr_tail()}", hint=doctor.hint()
        )

    def close(self) -> None:
        """End the engine and with it all its sandboxes."""
        if os.getpid() != self._owner_pid:
            return
        with self._lock:
            if self._ended is None:
                self._ended = "the engine was closed"
                self._let_go()
        if self._process.wait(_CLOSE_SECONDS) is None:
            self._process.kill()
            self._process.wait(_CLOSE_SECONDS)

    def _let_go(self) -> None:
        self._primary.close()
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
            idle.clear()

    def _obituary(self) -> str:
        # It has hung up, so it is ending or about to; a moment later its exit code is there.
        code = self._process.wait(1.0)
        if code is None:
            how = "hung up"
        elif code < 0:
            how = f"was killed by signal {-code}"
        else:
            how = f"ended with exit code {code}"
        said = self._process.stderr_tail()
        message = f"the engine (process {self._process.pid}) {how}; its sandboxes are gone"
        return f"{message}. It said:\n\n{said}" if said else message

    def _forked(self) -> None:
        """In a forked child: the descriptors here would keep calls of the parent open that the parent has given up."""
        self._lock = threading.Lock()
        self._primary.close()
        for connection in list(self._connections):
            connection.close()
        for idle in self._idle.values():
            idle.clear()


# Held weakly: an engine nobody refers to is a default one of the past, which has ended.
_engines: weakref.WeakSet[EmbeddedEngine] = weakref.WeakSet()
# Development puts an engine without walls here.
start_process: StartProcess = _start_process
_default_lock = threading.Lock()
_default: EmbeddedEngine | None = None


def default_engine() -> EmbeddedEngine:
    """The engine of this process, which is started if there is none or if it was lost."""
    global _default
    with _default_lock:
        if _default is None or not _default.running:
            _default = EmbeddedEngine(start_process)
        return _default


def saved_templates() -> frozenset[str]:
    """Names of templates that the engine of this process was given, if it has one."""
    with _default_lock:
        return frozenset(_default.saved_templates) if _default is not None and _default.running else frozenset()


def close_engine() -> None:
    """End the engine of this process, and with it all sandboxes. The next ``Sandbox()`` starts a new one."""
    global _default
    with _default_lock:
        engine, _default = _default, None
    if engine is not None:
        engine.close()


def _after_fork_in_child() -> None:
    global _default, _default_lock
    _default_lock = threading.Lock()
    _default = None
    for engine in list(_engines):
        engine._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(close_engine)
