"""The engine of this process: started on first use, shared by all its sandboxes, ended with it.

State of the module is one engine and its lock. A forked child forgets both: its parent's engine is not its own.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ramet.errors import (
    NO_ROOM_ERRNOS,
    EngineClosed,
    EngineLost,
    ForkedProcess,
    HostNotCapable,
    LimitReached,
    RametError,
)
from ramet.protocol import calls
from ramet.transport.embedded_links import AsyncLink, BlockingLink, wake_to_notice_signals
from ramet.transport.private_listener import PrivateListener

_IDLE_CONNECTIONS_AT_MOST = 8
_CLOSE_SECONDS = 5.0
# An engine that ends closes all its sockets, but not in one instant.
_END_SECONDS = 1.0
# How the dynamic linker ends a program, and what it says before.
_NOT_LOADED, _NO_LIBRARY = 127, "error while loading shared libraries"


class EngineProcess(Protocol):
    """What is needed to know of the engine's process."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None) -> int | None: ...
    def kill(self) -> None: ...
    def stderr_tail(self) -> str: ...


StartProcess = Callable[[socket.socket, socket.socket | None], EngineProcess]


def _start_process(primary: socket.socket, listener: socket.socket | None) -> EngineProcess:
    # Imported when needed: a process that only catches our errors never starts an engine.
    from ramet.isolation.launch import start_engine

    return start_engine(primary, engine_options, listener)


# More options of the engine's command line, for tests that want shorter waits; read when an engine starts.
engine_options: list[str] = []


def _above_standard(sock: socket.socket) -> socket.socket:
    """In a program without standard streams: a socket at 0, 1 or 2 would be taken for one of them."""
    if sock.fileno() > 2:
        return sock
    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


class EmbeddedEngine:
    """A running engine and the connections to it. Safe to use from several threads.

    Connections carry one call at a time. Those of blocking and of asynchronous callers are kept apart, since a socket
    is in one of the two modes.
    """

    remote = False

    def __init__(self, start: StartProcess) -> None:
        self._owner_pid = os.getpid()
        # Reentrant: a signal handler runs in the middle of what its thread does, and may close up or make a sandbox.
        self._lock = threading.RLock()
        self._idle: dict[bool, list[socket.socket]] = {True: [], False: []}
        # Every connection, also those in use: after a fork the child must let go of all of them.
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._ended: str | None = None
        self._lost = False
        # Calls are answered at once these days; kept here by blocking callers, who then look before they sleep.
        self.quick = False
        # Names that snapshots of this engine were saved as; they go with it.
        self.saved_templates: set[str] = set()
        # Ids of what was forgotten, and not yet told to the engine.
        self._forgotten: deque[str] = deque()
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._primary = _above_standard(ours)
        self._way = PrivateListener.make()
        # Before the start: another thread may fork during it, and the child must let go of these.
        _engines.add(self)
        try:
            self._process = start(self._theirs, self._way.listener if self._way is not None else None)
        except BaseException:
            self._let_go()
            raise
        finally:
            self._theirs.close()
            if self._way is not None:
                self._way.listener.close()

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
                f"this sandbox belongs to process {self._owner_pid}, but this is process {os.getpid()}",
                hint="make a new Sandbox() in the child process, or share sandboxes with `ramet serve`",
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
        self._tell_forgotten()
        try:
            return self._idle[blocking].pop()
        except IndexError:
            pass
        ours = self._new_connection()
        ours.setblocking(blocking)
        if blocking:
            wake_to_notice_signals(ours)
        with self._lock:
            self._connections.add(ours)
        return ours

    def _new_connection(self) -> socket.socket:
        if self._way is not None:
            try:
                return _above_standard(self._way.connect())
            except OSError:
                pass  # too many wait to be accepted, or nobody accepts any more: the other way tells
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            with theirs:
                try:
                    socket.send_fds(self._primary, [calls.CONNECT], [theirs.fileno()])
                except BaseException:
                    ours.close()
                    raise
        except OSError as error:
            if error.errno in NO_ROOM_ERRNOS:
                raise LimitReached(
                    f"cannot connect to the engine: {error.strerror}",
                    hint="wait for some calls to end, or raise the limit of open files (ulimit -n)",
                ) from error
            raise self.broken(begun=False) from error
        return _above_standard(ours)

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
            self._forgotten.append(some_id)
            self._tell_forgotten()

    def _tell_forgotten(self) -> None:
        """As many as the engine's socket takes now; the rest with the next call. Finalizers run this anywhere."""
        while self._forgotten:
            try:
                some_id = self._forgotten[0]
                self._primary.send(calls.FORGET + some_id.encode("ascii"), socket.MSG_DONTWAIT)
                # Only now: an exception of a signal handler must lose none. To tell one twice does no harm.
                self._forgotten.remove(some_id)
            except (IndexError, ValueError):
                continue  # another thread has told it
            except OSError:
                return

    def broken(self, begun: bool) -> RametError:
        """The error to raise when a connection has ended before its call. ``begun``: something had come of its answer.

        The engine may be there all the same: one without descriptors drops connections that it is given.
        """
        if self._ended is not None or self._gone():
            return self.lost()
        if begun:
            return RametError("the engine closed the connection before it answered")
        return LimitReached(
            "the engine could not take another connection",
            hint="close some sandboxes, or raise the limit of open files (ulimit -Hn)",
        )

    def _gone(self) -> bool:
        """The engine has ended or is ending: it alone holds the other end of the primary socket."""
        primary = self._primary.fileno()
        if primary < 0:
            return True
        ended = select.poll()
        ended.register(primary, select.POLLIN)  # it never writes
        return bool(ended.poll(_END_SECONDS * 1000)) or self._process.wait(0.0) is not None

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

        code = self._process.wait(0.0)
        if code == _NOT_LOADED and _NO_LIBRARY in (said := self._process.stderr_tail()):
            return HostNotCapable(
                f"the interpreter does not start inside the engine's view of this host: {said}",
                hint="use an interpreter whose libraries are found without LD_LIBRARY_PATH, in its own prefix",
            )
        if code != NOT_CAPABLE:
            return None
        return HostNotCapable(f"this host cannot run sandboxes: {self._process.stderr_tail()}", hint=doctor.hint())

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
        if self._way is not None:
            self._way.close()
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
        self._lock = threading.RLock()
        self._primary.close()
        self._theirs.close()
        if self._way is not None:
            self._way.close()
        self._forgotten.clear()
        for connection in list(self._connections):
            connection.close()
        for idle in self._idle.values():
            idle.clear()


# Held weakly: an engine nobody refers to is a default one of the past, which has ended.
_engines: weakref.WeakSet[EmbeddedEngine] = weakref.WeakSet()
# Development puts an engine without walls here.
start_process: StartProcess = _start_process
_default_lock = threading.RLock()
_default: EmbeddedEngine | None = None


def default_engine() -> EmbeddedEngine:
    """The engine of this process, which is started if there is none or if it was lost."""
    global _default
    with _default_lock:
        before = engine = _default
        if engine is not None and engine.running:
            return engine
        engine = EmbeddedEngine(start_process)
        other = _default
        if other is not None and other is not before and other.running:
            # A signal handler of this thread has started one meanwhile: there is one engine for a process.
            engine.close()
            return other
        _default = engine
        return engine


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
    _default_lock = threading.RLock()
    _default = None
    for engine in list(_engines):
        engine._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(close_engine)
