"""The keeper: the small process that owns a server's engine, so that sandboxes outlive the server.

    python -m ramet.doors.http.processes.keeper --state DIR

    server ──connect──▶ DIR/engine.sock ──▶ keeper ──CONNECT + descriptor──▶ engine
       └───────────────── from then on the two talk to each other ─────────────┘

There is one keeper per folder: it holds a lock on ``keeper.pid``. It ends when its engine ends (and logs the engine's
last output to ``engine.log``), on SIGTERM, and when no process that ever connected has been alive for a while, which
may be no time at all. The engine always ends with it.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ramet.errors import NO_ROOM_ERRNOS, HostNotCapable, RametError
from ramet.isolation.files import interpreter
from ramet.isolation.launch import NOT_CAPABLE, EngineProcess, start_engine
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, FrameDecoder, encode
from ramet.transport.builds import build
from ramet.transport.locking import FileLock, cannot_write

SOCKET_NAME = "engine.sock"
PID_NAME = "keeper.pid"
LOG_NAME = "engine.log"

LINGER_SECONDS = 3600.0

# Exit codes; the reader of the pipe given with --ready-fd gets a line of JSON with the details.
STOPPED, ENGINE_ENDED, BUSY = 0, 1, 3

_FIRST_CLIENT_SECONDS = 60.0  # whoever started the keeper gets this long to connect
_CLOSE_SECONDS = 10.0  # an engine with hundreds of sandboxes needs a few seconds to end them all
_BACKLOG = 512
_RETRY_SECONDS = 0.02
_LOG_BYTES_AT_MOST = 1024 * 1024
_UCRED = struct.Struct("3i")


class Keeper:
    """Owns the engine, the listening socket and the lock.

    It has one thread and one selector; `run` returns the exit code.
    """

    def __init__(self, state: Path, linger_seconds: float, options: Sequence[str], ready: int | None) -> None:
        self._state = state
        self._linger_seconds = linger_seconds
        self._options = options
        self._ready = ready
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, int] = {}  # pidfd by pid, for every process that has connected and still lives
        self._alone_until = 0.0  # matters once we listen, and while there is no client
        self._listener: socket.socket | None = None
        self._held: socket.socket | None = None  # a connection that was accepted while the engine's socket is full
        self._end: int | None = None
        self._decoder = FrameDecoder(FROM_ENGINE)

    def run(self) -> int:
        try:
            lock = FileLock.take(self._state / PID_NAME)
        except RametError as error:
            self._tell_error(error)
            return ENGINE_ENDED
        if lock is None:
            self._tell({"busy": True})
            return BUSY
        # The kernel refuses to send descriptors (ETOOMANYREFS) while more of this user's are in flight than the
        # sender's soft limit.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with lock:
            try:
                lock.write(f"{os.getpid()} {build()}\n")
            except RametError as error:
                self._tell_error(error)
                return ENGINE_ENDED
            with suppress(FileNotFoundError):
                # Left by a keeper that was killed: we hold the lock, so it is gone.
                os.unlink(self._state / SOCKET_NAME)
            primary, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with theirs:
                    engine = start_engine(theirs, [*_sealed(), "--server", _name(self._state), *self._options])
            except RametError as error:
                self._tell_error(error)
                return ENGINE_ENDED
            return self._keep(engine, primary)

    def _keep(self, engine: EngineProcess, primary: socket.socket) -> int:
        first, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(primary, [calls.CONNECT], [theirs.fileno()])
        # An engine that answers this call is ready, including the machinery below it.
        first.sendall(encode(calls.FACTS, {}))
        self._primary = primary
        primary.setblocking(False)
        signals, wakeup = socket.socketpair()
        pidfd = os.pidfd_open(engine.pid)
        for sock in (signals, wakeup, first):
            sock.setblocking(False)
        self._watch_signals(wakeup)
        self._on(signals, lambda: self._stop(STOPPED))
        self._on(pidfd, lambda: self._stop(ENGINE_ENDED))
        self._on(primary, lambda: self._stop(ENGINE_ENDED))  # the engine never writes to it, so readable means closed
        self._on(first, lambda: self._first_word(first, engine))
        try:
            while self._end is None:
                for key, _ in self._selector.select(self._patience()):
                    key.data()
                self._look_at_the_clock()
        finally:
            self._leave(engine, primary)
            os.close(pidfd)
        return self._end

    def _watch_signals(self, wakeup: socket.socket) -> None:
        # A signal that arrives just before `select` would not end it, because Python runs handlers between two
        # bytecodes. The byte that Python writes to this socket does.
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on(self, what: socket.socket | int, act: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, act)

    def _stop(self, code: int) -> None:
        if self._end is None:
            self._end = code

    def _first_word(self, first: socket.socket, engine: EngineProcess) -> None:
        try:
            data = first.recv(65536)
        except OSError:
            data = b""
        frame = next(self._decoder.feed(data), None) if data else None
        if data and frame is None:
            return
        self._selector.unregister(first)
        first.close()
        if frame is None or frame.kind == calls.ERROR:
            self._tell_failure(engine, frame.header if frame is not None else None)
            self._stop(ENGINE_ENDED)
            return
        # Listen only now: a client that finds the socket may connect at once, and the engine must be ready by then.
        self._listener = self._listen()
        self._alone_until = time.monotonic() + max(self._linger_seconds, _FIRST_CLIENT_SECONDS)
        self._on(self._listener, self._accept)
        self._tell({"ready": os.getpid()})
        say(f"engine {engine.pid} is up")

    def _tell_failure(self, engine: EngineProcess, error: object) -> None:
        if isinstance(error, dict):
            self._tell({"error": error.get("code"), "message": error.get("message"), "hint": error.get("hint")})
            return
        if engine.wait(_CLOSE_SECONDS) == NOT_CAPABLE:
            # Imported here: only hosts that cannot run sandboxes need it.
            from ramet.isolation import doctor

            message = f"this host does not let us build a sandbox: {engine.stderr_tail()}"
            self._tell({"error": HostNotCapable.code, "message": message, "hint": doctor.hint()})
        else:
            said = engine.stderr_tail() or "nothing"
            self._tell({"error": "engine_lost", "message": f"the engine ended while starting: {said}"})

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The mode is set by the umask at `bind`: a later chmod would leave a moment in which others could connect.
        before = os.umask(0o177)
        try:
            listener.bind(str(self._state / SOCKET_NAME))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            # Out of descriptors or memory: wait, because the listener stays readable and the loop would spin.
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR):
                time.sleep(_RETRY_SECONDS)
            return
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        # The socket's mode already excludes other users, except root.
        if uid != os.geteuid():
            connection.close()
            return
        self._remember(pid)
        self._pass_on(connection)

    def _remember(self, pid: int) -> None:
        if pid in self._clients or pid == 0:  # 0: the peer is in another pid namespace, where we cannot watch it
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # it has already ended
            return
        self._clients[pid] = pidfd
        self._on(pidfd, lambda: self._forget(pid))

    def _forget(self, pid: int) -> None:
        pidfd = self._clients.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._alone_until = time.monotonic() + self._linger_seconds

    def _pass_on(self, connection: socket.socket) -> None:
        """Hand a connection to the engine. While the engine's socket is full, keep it and accept no more."""
        try:
            socket.send_fds(self._primary, [calls.CONNECT], [connection.fileno()])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS):
                if self._held is None and self._listener is not None:
                    self._selector.unregister(self._listener)
                self._held = connection
                return
        # Sent, or failed for good: in both cases accept again and close our copy.
        if self._held is not None and self._listener is not None:
            self._on(self._listener, self._accept)
        self._held = None
        connection.close()

    def _patience(self) -> float | None:
        if self._held is not None:
            return _RETRY_SECONDS
        if self._clients or self._listener is None:
            return None
        return max(0.0, self._alone_until - time.monotonic())

    def _look_at_the_clock(self) -> None:
        if self._held is not None:
            self._pass_on(self._held)
        alone = not self._clients and self._listener is not None
        if alone and time.monotonic() >= self._alone_until:
            say(f"nobody has been here for {self._linger_seconds:g} seconds")
            self._stop(STOPPED)

    def _leave(self, engine: EngineProcess, primary: socket.socket) -> None:
        """Stop listening, end the engine and report how it ended.

        The socket file goes first: a server that finds none starts a new keeper, which waits for our lock. A file that
        stayed would lead it to an engine that is ending.
        """
        if self._listener is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._state / SOCKET_NAME)
            self._listener.close()
        primary.close()
        code = engine.wait(_CLOSE_SECONDS)
        if code is None:
            say("the engine does not end; killing it")
            engine.kill()
            code = engine.wait(_CLOSE_SECONDS)
        said = engine.stderr_tail()
        say(f"engine {engine.pid} ended with exit code {code}" + (f"; it said:\n{said}" if said else ""))
        self._tell({"error": "engine_lost", "message": f"the engine ended with exit code {code}: {said}"})

    def _tell_error(self, error: RametError) -> None:
        self._tell({"error": error.code, "message": error.message, "hint": error.hint})

    def _tell(self, news: dict[str, object]) -> None:
        """Report to the process that started us, once."""
        if self._ready is not None:
            with suppress(OSError):
                os.write(self._ready, json.dumps(news).encode() + b"\n")
            os.close(self._ready)
            self._ready = None


def _name(state: Path) -> str:
    """Of this server, among those of the same user: its sandboxes on disk are its own."""
    return hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:16]


def _sealed() -> list[str]:
    """Options that show sandboxes this interpreter and no folder of the host.

    A compromised worker must not read its user's files by asking the engine to mount them.
    """
    return ["--only-interpreter", json.dumps(interpreter.find(sys.executable).header())]


def say(text: str) -> None:
    """Write a line to engine.log, which is our standard error."""
    with suppress(OSError):  # a full disk must not end the keeper
        print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), f"keeper {os.getpid()}:", text, file=sys.stderr, flush=True)


def open_log(state: Path) -> int:
    """Open the log, and start a new one if it has grown large. Return /dev/null if the disk is full."""
    path = state / LOG_NAME
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with suppress(FileNotFoundError):
            if path.stat().st_size > _LOG_BYTES_AT_MOST:
                path.replace(path.with_name(f"{LOG_NAME}.1"))
        return os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno not in NO_ROOM_ERRNOS:
            raise cannot_write(path, error) from error
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ramet.doors.http.processes.keeper", description=__doc__.partition("\n")[0])
    parser.add_argument("--state", type=Path, required=True, help="the folder of the server's state")
    parser.add_argument("--linger", type=float, default=LINGER_SECONDS, metavar="SECONDS", help="end when alone")
    parser.add_argument("--ready-fd", type=int, help="descriptor to write a line of JSON to: ready, busy or an error")
    parser.add_argument("options", nargs="*", help="options of the engine, after --")
    chosen = parser.parse_args(arguments)
    if chosen.ready_fd is not None:
        os.set_inheritable(chosen.ready_fd, False)
    state: Path = chosen.state.absolute()
    os.chdir("/")
    # The engine may have another uid and must be able to read what the launcher makes. Our own files set their modes.
    os.umask(0o022)
    return Keeper(state, chosen.linger, chosen.options, chosen.ready_fd).run()


if __name__ == "__main__":
    sys.exit(main())
