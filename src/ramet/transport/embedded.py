"""The engine of this process: started on first use, shared by all its sandboxes, ended with the process.

The module's state is one engine and a lock. A forked child forgets both, because the engine belongs to its parent.
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
from ramet.transport.embedded_links import AsyncEmbeddedLink, BlockingLink, wake_to_notice_signals
from ramet.transport.private_listener import PrivateListener

_IDLE_CONNECTIONS_AT_MOST = 8
_CLOSE_SECONDS = 5.0
# An engine that is ending closes its sockets one after another, not all at once.
_END_SECONDS = 1.0
# The exit code and the message of a dynamic linker that cannot load a program.
_NOT_LOADED, _NO_LIBRARY = 127, "error while loading shared libraries"


class RunningEngine(Protocol):
    """The operations on the engine's process that this module needs."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None) -> int | None: ...
    def kill(self) -> None: ...
    def stderr_tail(self) -> str: ...


StartProcess = Callable[[socket.socket, socket.socket | None], RunningEngine]


def _start_process(primary: socket.socket, listener: socket.socket | None) -> RunningEngine:
    # Imported on demand: a process that only catches our errors never starts an engine.
    from ramet.isolation.launch import start_engine

    return start_engine(primary, engine_options, listener)


# More options for the engine's command line; tests set shorter waits here. Read when an engine starts.
engine_options: list[str] = []


def _above_standard(sock: socket.socket) -> socket.socket:
    """Move a socket to a descriptor above 2.

    In a program without standard streams a new socket may get 0, 1 or 2, and code would take it for one of them.
    """
    if sock.fileno() > 2:
        return sock
    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


class EmbeddedEngine:
    """A running engine and the connections to it. Safe to use from several threads.

    A connection carries one call at a time. Connections of blocking and of asynchronous callers are kept apart, because
    a socket is in one of the two modes.
    """

    remote = False

    def __init__(self, start: StartProcess) -> None:
        self._owner_pid = os.getpid()
        # Reentrant: a signal handler may run while its thread holds the lock, and may itself close the engine or make a
        # sandbox.
        self._lock = threading.RLock()
        # Idle connections, by blocking mode. `connect` pops without the lock: a pop from a list is atomic.
        self._idle: dict[bool, list[socket.socket]] = {True: [], False: []}
        # All connections, also those in use: after a fork the child must close its copies of all of them.
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        # Why the engine ended, or None while it runs. Written once, under the lock: several threads may notice the end.
        self._ended: str | None = None
        self._lost = False
        # Whether the last call was answered quickly. Blocking callers set it, and then poll before they sleep.
        self.quick = False
        # Names under which snapshots of this engine were saved; they end with the engine.
        self.saved_templates: set[str] = set()
        # Ids of collected sandboxes and snapshots whose closing was not yet sent to the engine. A deque, because
        # finalizers append in the middle of any code, also while this thread holds a lock.
        self._forgotten: deque[str] = deque()
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._primary = _above_standard(ours)
        self._way = PrivateListener.make()
        # Registered before the start: another thread may fork meanwhile, and the child must close its copies of these
        # sockets.
        _engines.add(self)
        try:
            self._process = start(self._theirs, self._way.listener if self._way is not None else None)
        except BaseException:
            self._let_go()
            raise
        finally:
            # The launcher has its own copies. If we kept ours, we would not notice the end of the engine.
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
        """Raise ForkedProcess, EngineLost or EngineClosed if this process cannot make calls."""
        if os.getpid() != self._owner_pid:
            raise ForkedProcess(
                f"this sandbox belongs to process {self._owner_pid}, but this is process {os.getpid()}",
                hint="make a new Sandbox() in the child process, or share sandboxes with `ramet serve`",
            )
        if self._ended is not None:
            raise (EngineLost if self._lost else EngineClosed)(self._ended)

    def link(self) -> BlockingLink:
        return BlockingLink(self, self.connect(blocking=True))

    def async_link(self) -> AsyncEmbeddedLink:
        return AsyncEmbeddedLink(self, self.connect(blocking=False))

    def connect(self, blocking: bool) -> socket.socket:
        """Return a connection for one call: an idle one, or a new one."""
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
                pass  # the backlog is full, or the engine accepts no more: the other way reports which
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
        """Keep a connection whose call ended well. Connections of other calls are closed instead."""
        # Under the lock: `lost` or `close` may be closing all idle connections, and would miss one added after that.
        with self._lock:
            idle = self._idle[blocking]
            if self._ended is None and len(idle) < _IDLE_CONNECTIONS_AT_MOST:
                idle.append(connection)
                return
        connection.close()

    def forget(self, some_id: str, kind: int) -> None:
        """Close the sandbox or snapshot with this id without waiting for the result.

        Finalizers call it, so it must not block.
        """
        if self.running:
            self._forgotten.append(some_id)
            self._tell_forgotten()

    def _tell_forgotten(self) -> None:
        """Send as many ids as the engine's socket takes now, the rest with the next call.

        Finalizers run this in the middle of any code, so it takes no lock.
        """
        while self._forgotten:
            try:
                some_id = self._forgotten[0]
                self._primary.send(calls.FORGET + some_id.encode("ascii"), socket.MSG_DONTWAIT)
                # Removed after the send: a signal handler may raise in between, and no id may be lost. Sending one
                # twice is harmless.
                self._forgotten.remove(some_id)
            except (IndexError, ValueError):
                continue  # another thread has sent it
            except OSError:
                return

    def broken(self, begun: bool) -> RametError:
        """Return the error for a connection that ended before its call. ``begun``: part of the answer had arrived.

        The engine may still be running: one that is out of descriptors drops new connections.
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
        """Whether the engine has ended or is ending: only it holds the other end of the primary socket."""
        primary = self._primary.fileno()
        if primary < 0:
            return True
        ended = select.poll()
        ended.register(primary, select.POLLIN)  # the engine never writes to it, so readable means closed
        return bool(ended.poll(_END_SECONDS * 1000)) or self._process.wait(0.0) is not None

    def lost(self) -> EngineLost | EngineClosed | HostNotCapable:
        """Return the error for an engine that hung up, with everything that is known about the cause."""
        with self._lock:
            # The first thread to notice writes the message; the others report the same one.
            if self._ended is None:
                self._lost = True
                self._ended = self._obituary()
                self._let_go()
        return self._not_capable() or (EngineLost if self._lost else EngineClosed)(self._ended)

    def _not_capable(self) -> HostNotCapable | None:
        """Return the error for an engine that never started because the host refused a step of its launch."""
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
        """End the engine and with it all its sandboxes. Does nothing in a forked child."""
        if os.getpid() != self._owner_pid:
            return
        # Marked as ended before it ends, so that calls that break now report EngineClosed and not EngineLost.
        with self._lock:
            if self._ended is None:
                self._ended = "the engine was closed"
                self._let_go()
        if self._process.wait(_CLOSE_SECONDS) is None:
            self._process.kill()
            self._process.wait(_CLOSE_SECONDS)

    def _let_go(self) -> None:
        """Close all sockets that no call is using. Calls under way fail when the engine closes theirs."""
        self._primary.close()
        if self._way is not None:
            self._way.close()
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
            idle.clear()

    def _obituary(self) -> str:
        # The socket closes a moment before the process ends; wait for the exit code.
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
        """Drop everything in a forked child.

        The child's copies of these sockets would keep calls open that the parent has given up.
        """
        # Another thread of the parent may have held the lock at the fork; it does not exist here to release it.
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


# Weak references: an engine without references is a former default engine that has ended.
_engines: weakref.WeakSet[EmbeddedEngine] = weakref.WeakSet()
# Development sets this to a function that starts an engine without walls.
start_process: StartProcess = _start_process
# Reentrant, as in `EmbeddedEngine`: a signal handler may call `default_engine` while its thread holds the lock.
_default_lock = threading.RLock()
_default: EmbeddedEngine | None = None


def default_engine() -> EmbeddedEngine:
    """Return the engine of this process. Start one if there is none or if it was lost."""
    global _default
    with _default_lock:
        before = engine = _default
        if engine is not None and engine.running:
            return engine
        # Slow, and under the lock: two threads must not start two engines.
        engine = EmbeddedEngine(start_process)
        other = _default
        if other is not None and other is not before and other.running:
            # A signal handler of this thread started one meanwhile. A process has one engine, so drop ours.
            engine.close()
            return other
        _default = engine
        return engine


def saved_templates() -> frozenset[str]:
    """Return the names of templates saved in this process's engine, if there is one."""
    with _default_lock:
        return frozenset(_default.saved_templates) if _default is not None and _default.running else frozenset()


def close_engine() -> None:
    """End the engine of this process, and with it all sandboxes. The next ``Sandbox()`` starts a new one."""
    global _default
    with _default_lock:
        # Taken out under the lock, closed outside: closing takes seconds and must not block `default_engine`.
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
