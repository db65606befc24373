"""The supervisor's side of the keeper: finds the keeper of a state folder or starts one, and notices its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ramet.doors.http.processes import keeper
from ramet.errors import EngineLost, RametError, error_from_code
from ramet.protocol import calls, fields
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.transport.builds import build
from ramet.transport.locking import holder
from ramet.transport.resolving import resolve

_UCRED = struct.Struct("3i")
_READ_BYTES = 65536
_PASSED_ON = frozenset(("HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"))
_PASSED_ON_PREFIXES = ("LC_", "PYTHON")
# A keeper that stops ends its engine first, and one that starts has to build its engine. Wait this long for either.
_BUSY_SECONDS = 60.0
_BUSY_RETRY_SECONDS = 0.05
_ANSWER_SECONDS = 60.0
_STOP_SECONDS = 30.0


class EngineLink:
    """An idle connection to a running engine, which ends with the engine. Owns the socket and the keeper's pidfd."""

    def __init__(self, connection: socket.socket) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        self.keeper_pid: int = _UCRED.unpack(credentials)[0]  # the process that called listen()
        self._connection = connection
        self._pidfd = os.pidfd_open(self.keeper_pid)  # a pid could belong to another process by the time of `stop`
        self._decoder = FrameDecoder(FROM_ENGINE)

    @classmethod
    async def connect(cls, state: Path) -> EngineLink | None:
        """Connect to the engine of a state folder.

        None: no engine runs there. Raises EngineLost if it does not answer.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, str(state / keeper.SOCKET_NAME))
            link = cls(connection)
        except (FileNotFoundError, ConnectionRefusedError, ProcessLookupError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        try:
            await asyncio.wait_for(link.ask(calls.FACTS, {}), _ANSWER_SECONDS)
        except EngineLost:  # the engine was just ending
            link.close()
            return None
        except TimeoutError:
            link.close()
            raise EngineLost(
                f"the engine of {state} does not answer",
                hint=f"end it, and with it its sandboxes: kill {link.keeper_pid}",
            ) from None
        return link

    async def ask(self, kind: int, header: Mapping[str, object]) -> Frame:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._connection, encode(kind, header))
            while data := await loop.sock_recv(self._connection, _READ_BYTES):
                for frame in self._decoder.feed(data):
                    if frame.kind == calls.ERROR:
                        raise calls.read_error(frame.header)
                    return frame
        except OSError:
            pass
        raise EngineLost("the engine ended")

    async def warm_up(self) -> None:
        """Boot the default template and fill its pool before the first caller asks for a sandbox."""
        made = await self.ask(calls.CREATE, resolve(SandboxOptions()).header())
        await self.ask(calls.CLOSE, {"sandbox": fields.text(made.header, "id")})

    async def ended(self) -> None:
        """Wait until the engine has ended."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while await loop.sock_recv(self._connection, _READ_BYTES):
                pass

    async def stop(self) -> None:
        """End the keeper and its engine, and wait until both are gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        try:
            await asyncio.wait_for(wait_for_exit(self._pidfd), _STOP_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await wait_for_exit(self._pidfd)

    def close(self) -> None:
        self._connection.close()
        os.close(self._pidfd)


class KeeperClient:
    """Finds or starts keepers for one state folder. Owns the processes that it has started, to reap them."""

    def __init__(self, state: Path, options: Sequence[str]) -> None:
        self._state = state
        self._options = options
        self._started: list[subprocess.Popen[bytes]] = []

    async def link(self, starting: Callable[[], None] = lambda: None) -> tuple[EngineLink, bool]:
        """Return a link to the engine, and whether the engine is new. Calls `starting` before it starts a keeper.

        Raises EngineLost if the keeper neither answers nor ends, or belongs to another build.
        """
        until = asyncio.get_running_loop().time() + _BUSY_SECONDS
        while True:
            found = await EngineLink.connect(self._state)
            if found is not None:
                self._check_build(found)
                return found, False
            starting()
            news = await self._start()
            if "ready" in news:
                found = await EngineLink.connect(self._state)
                if found is not None:
                    return found, True
                # The engine ended again between its first line and our connection: try again.
            elif "busy" not in news:
                raise _error(news)
            if asyncio.get_running_loop().time() > until:
                told = holder(self._state / keeper.PID_NAME) or "unknown"
                raise EngineLost(
                    f"the keeper of {self._state} (process {told}) neither answers nor ends",
                    hint=f"end it, and with it its sandboxes: kill {told.partition(' ')[0]}",
                )
            await asyncio.sleep(_BUSY_RETRY_SECONDS)

    def _check_build(self, link: EngineLink) -> None:
        told = holder(self._state / keeper.PID_NAME)
        theirs = told.partition(" ")[2]
        if theirs and theirs != build():
            link.close()
            raise EngineLost(
                f"the engine of {self._state} belongs to Ramet {_named(theirs)}, but this is {_named(build())}; "
                "its sandboxes keep running, but another build cannot take them over",
                hint="start the build that they belong to, or end the engine and "
                f"with it its sandboxes: kill {link.keeper_pid}",
            )

    async def _start(self) -> Mapping[str, object]:
        """Start a keeper, and return the first line that it writes: ready, busy or an error."""
        self.reap()
        read_end, write_end = os.pipe()
        log = keeper.open_log(self._state)
        command = [sys.executable, "-P", "-m", "ramet.doors.http.processes.keeper", "--state", str(self._state)]
        try:
            process = subprocess.Popen(
                [*command, "--ready-fd", str(write_end), *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[write_end],
                start_new_session=True,  # it outlives us, and must not get the terminal's Ctrl-C
                env=child_environment(),
            )
        finally:
            os.close(write_end)  # only the keeper holds it then, so that we read its end if the keeper dies
            os.close(log)
        self._started.append(process)
        try:
            line = await _read_line(read_end)
        finally:
            os.close(read_end)
        try:
            news: object = json.loads(line)
        except ValueError:
            news = None
        if isinstance(news, dict):
            return news
        return {"error": EngineLost.code, "message": f"the keeper ended at once; see {self._state / keeper.LOG_NAME}"}

    async def stop_started(self) -> None:
        """End the keepers that were started here and have not ended."""
        for process in self._started:
            if process.poll() is None:
                process.terminate()
                pidfd = os.pidfd_open(process.pid)
                try:
                    await wait_for_exit(pidfd)
                finally:
                    os.close(pidfd)
        self.reap()

    def reap(self) -> None:
        self._started = [process for process in self._started if process.poll() is None]


def child_environment() -> dict[str, str]:
    """The variables that Python and system libraries read.

    Others, which may hold tokens and passwords, are left out.
    """
    ours = os.environ.items()
    return {name: value for name, value in ours if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)}


async def wait_for_exit(pidfd: int) -> None:
    """Wait until a process has ended, which makes its pidfd readable."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(pidfd)


async def _read_line(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    line = b""
    try:
        while not line.endswith(b"\n"):
            await readable.wait()
            readable.clear()
            try:
                piece = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                continue
            if not piece:
                break
            line += piece
    finally:
        loop.remove_reader(descriptor)
    return line


def _named(told: str) -> str:
    """A version and a build, as people read them."""
    version, _, one = told.partition(" ")
    return f"{version} (build {one})" if one else version


def _error(news: Mapping[str, object]) -> RametError:
    code, message, hint = (news.get(name) for name in ("error", "message", "hint"))
    return error_from_code(str(code), str(message), hint if isinstance(hint, str) else None, {})
