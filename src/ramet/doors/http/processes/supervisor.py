"""``ramet serve``: the process that a person starts. It does no work itself, but keeps two others running.

    supervisor           owns the listening socket; SIGTERM, SIGINT: a graceful stop
    ├─ worker            ``confined_worker``: answers HTTP, unprivileged; ends with the supervisor; replaced if it dies
    └─ keeper ─ engine   outlives the supervisor, and the next one finds it; replaced if the engine is lost

The reasons are in docs/decisions/0013-keeper-and-worker.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from ramet.doors.http.access.audit_file import AuditFile, AuditWriter
from ramet.doors.http.processes.keeper import LINGER_SECONDS
from ramet.doors.http.processes.keeper_client import EngineLink, KeeperClient, child_environment, wait_for_exit
from ramet.doors.http.records import ServerRecords
from ramet.doors.http.settings import ServerSettings
from ramet.doors.http.state import DATABASE_NAME, SERVE_NAME, prepare
from ramet.errors import InvalidArgument, RametError
from ramet.isolation.kernel import cgroups
from ramet.isolation.launch import history_options, images_option
from ramet.transport.locking import FileLock, holder
from ramet.web.listener import address_of, is_loopback, listen, reachable
from ramet.web.request_log import Log
from ramet.web.sqlite_store import now_ms

_FIRST_WAIT_SECONDS = 0.1
_LAST_WAIT_SECONDS = 10.0
_STEADY_SECONDS = 30.0  # after this long a process counts as healthy, and the delay of a restart starts anew
_AFTER_GRACE_SECONDS = 10.0  # the worker enforces the grace period itself; this is for one that hangs
_UP_SECONDS = 60.0
_NOTIFY_VARIABLE = "NOTIFY_SOCKET"  # set by systemd for a service of Type=notify (sd_notify(3))

Progress = Callable[[str], None]


def serve(
    settings: ServerSettings,
    *,
    linger_seconds: float = LINGER_SECONDS,
    engine_options: Sequence[str] = (),
    announce: Callable[[ServerSettings], None] = lambda _: None,
    progress: Progress = lambda _: None,
) -> int:
    """Serve until a signal, and return the exit code. Raises RametError if the server cannot start.

    `announce` is called once, with the real address, when requests are answered; `progress` with what is being waited
    for, and with "" when that is over. Sandboxes outlive a killed server for `linger_seconds`.
    """
    state = Path(settings.state).absolute()
    prepare(state)
    with _alone(state), listen(settings.host, settings.port) as listener:
        host, port = address_of(listener)
        settings = replace(settings, state=str(state), host=host, port=port)
        _check_keys(settings)
        if cgroups.step_aside():  # before any child: keeper and worker are born in the group where we are
            Log(settings.log_format).event("control group shared out", server=cgroups.SERVER_GROUP)
            if _NOTIFY_VARIABLE in os.environ:
                # systemd starts the next server in the group that we have just left, which the kernel refuses
                # (status=219/CGROUP) as long as an engine is below it. It tries again until the engine has ended.
                linger_seconds = 0.0
                Log(settings.log_format).event("sandboxes end with this server", reason="no DelegateSubgroup")
        keeper_options = ["--linger", str(linger_seconds), "--", *images_option(), *history_options(), *engine_options]
        supervisor = Supervisor(settings, listener, keeper_options, announce, progress)
        return asyncio.run(supervisor.run())


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    lock = FileLock.take(state / SERVE_NAME)
    if lock is None:
        told = holder(state / SERVE_NAME)
        raise InvalidArgument(
            f"another server (process {told or 'unknown'}) already uses the state folder {state}",
            hint="stop that one first, or give this one a folder of its own: ramet serve --state DIR --port PORT",
            details={"argument": "state"},
        )
    with lock:
        lock.write(str(os.getpid()))
        yield


def _check_keys(settings: ServerSettings) -> None:
    """Open the records, which also migrates them, and require a key unless only this machine can connect.

    Raises RametError if the records cannot be used, InvalidArgument if a key is missing.
    """
    records = ServerRecords(Path(settings.state) / DATABASE_NAME)
    try:
        keys = [key for key in records.keys.rows() if key.scope != "metrics" and not key.expired(now_ms())]
    finally:
        records.close()
    if is_loopback(settings.host) or keys:
        return
    raise InvalidArgument(
        f"host {settings.host} can be reached from other machines, and there is no key to protect the server",
        hint=f"make one first: ramet keys create --name NAME --state {settings.state}",
        details={"argument": "host"},
    )


class Supervisor:
    """Owns the worker's process and the link to the engine. Call `run` once."""

    def __init__(
        self,
        settings: ServerSettings,
        listener: socket.socket,
        keeper_options: Sequence[str],
        announce: Callable[[ServerSettings], None],
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._announce = announce
        self._progress = progress
        self._log = Log(settings.log_format)
        self._keeping = KeeperClient(Path(settings.state), keeper_options)
        self._engine: EngineLink | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._audit: AuditWriter | None = None
        self._told_to_stop = asyncio.Event()  # the first signal
        self._hurried = asyncio.Event()  # the second one: kill the worker without waiting for its grace period

    async def run(self) -> int:
        if self._settings.audit_bytes:
            file = AuditFile(Path(self._settings.state), self._settings.audit_bytes)
            self._audit = AuditWriter(file, lambda message: self._log.event("audit", level="error", message=message))
        try:
            return await self._run()
        finally:
            if self._audit is not None:
                self._audit.close()

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored after nohup
                loop.add_signal_handler(number, self._on_signal)
        keepers: list[asyncio.Task[None]] = []
        try:
            await self._unless_stopped(self._begin())
            if not self._told_to_stop.is_set():
                keepers = [loop.create_task(self._keep_engine()), loop.create_task(self._keep_worker())]
                told = loop.create_task(self._told_to_stop.wait())
                await asyncio.wait([told, *keepers], return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
        except RametError:
            # A failed start leaves nothing behind. An engine that ran before has sandboxes, so it is left alone.
            await self._end_worker(0.0)
            await self._keeping.stop_started()
            raise
        finally:
            self._progress("")
            for task in keepers:
                task.cancel()
            ended = await asyncio.gather(*keepers, return_exceptions=True)
        for failure in ended:
            if isinstance(failure, Exception):
                await self._end_worker(0.0)
                raise failure  # a bug of ours: leave the engine to the next supervisor
        await self._stop()
        return 0

    def _on_signal(self) -> None:
        (self._hurried if self._told_to_stop.is_set() else self._told_to_stop).set()

    async def _unless_stopped(self, work: Awaitable[None]) -> None:
        """Wait until the work is done, or cancel it at a signal."""
        task = asyncio.ensure_future(work)
        told = asyncio.ensure_future(self._told_to_stop.wait())
        await asyncio.wait([task, told], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            task.result()

    async def _begin(self) -> None:
        if await self._reach_engine():
            self._progress("booting the default template")
            await self._warm_up()
        self._progress("starting the server")
        self._worker = self._start_worker()
        await self._until_up(self._worker)
        self._progress("")
        self._announce(self._settings)
        notify("READY=1")

    # The engine

    async def _reach_engine(self) -> bool:
        self._engine, new = await self._keeping.link(lambda: self._progress("starting the engine"))
        self._log.event("engine", state="started" if new else "found", keeper=self._engine.keeper_pid)
        return new

    async def _warm_up(self) -> None:
        assert self._engine is not None
        try:
            await self._engine.warm_up()
        except RametError as error:
            # Everybody who asks for a sandbox gets the same error, and meanwhile the server can be asked for the
            # reason.
            self._log.event("template failed", level="error", message=error.message)

    async def _keep_engine(self) -> None:
        wait_seconds = _FIRST_WAIT_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            if self._engine is not None:
                since = loop.time()
                await self._engine.ended()
                self._engine.close()
                self._engine = None
                self._log.event("engine lost", level="error", log=f"{self._settings.state}/engine.log")
                if loop.time() - since > _STEADY_SECONDS:
                    wait_seconds = _FIRST_WAIT_SECONDS
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, _LAST_WAIT_SECONDS)
            self._keeping.reap()
            try:
                if await self._reach_engine():
                    await self._warm_up()
            except RametError as error:
                self._log.event("engine not started", level="error", message=error.message)

    # The worker

    def _start_worker(self) -> subprocess.Popen[bytes]:
        descriptor = self._listener.fileno()
        given = [descriptor]
        command = [
            sys.executable,
            "-P",
            "-m",
            "ramet.doors.http.processes.confined_worker",
            "--parent",
            str(os.getpid()),
        ]
        command += ["--socket", str(descriptor), "--settings", json.dumps(asdict(self._settings))]
        if self._audit is not None:
            given.append(self._audit.descriptor)
            command += ["--audit", str(self._audit.descriptor)]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=given,
            process_group=0,  # the terminal's Ctrl-C is for us alone; we stop the worker when it is time
            env=child_environment(),
        )

    async def _keep_worker(self) -> None:
        wait_seconds = _FIRST_WAIT_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            assert self._worker is not None
            since = loop.time()
            code = await _ended(self._worker)
            self._log.event("worker ended", level="error", code=code)
            if loop.time() - since > _STEADY_SECONDS:
                wait_seconds = _FIRST_WAIT_SECONDS
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, _LAST_WAIT_SECONDS)
            self._worker = self._start_worker()
            self._log.event("worker started", pid=self._worker.pid)

    async def _until_up(self, worker: subprocess.Popen[bytes]) -> None:
        """Wait until the worker answers a first request.

        The socket listens already, so the request waits in its queue.
        """
        answer = asyncio.ensure_future(self._ask_health())
        ended = asyncio.ensure_future(_ended(worker))
        done, _ = await asyncio.wait([answer, ended], timeout=_UP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in (answer, ended):
            task.cancel()
        await asyncio.gather(answer, ended, return_exceptions=True)
        if answer in done and answer.exception() is None and answer.result():
            return
        how = f"ended with exit code {worker.poll()}" if worker.poll() is not None else "does not answer"
        raise RametError(f"the server's worker {how}; its output is above")

    async def _ask_health(self) -> bool:
        host, port = reachable(self._settings.host), self._settings.port
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(f"GET /v1/healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
            # 503: the worker answers, but is not connected to the engine yet.
            line = await reader.readline()
            return b" 200 " in line or b" 503 " in line
        finally:
            writer.close()

    # Stopping

    async def _stop(self) -> None:
        """Refuse new connections, give running cells their grace period, then end the engine with all sandboxes."""
        notify("STOPPING=1")
        # Our copy first: the socket would outlive the worker, and connections would wait in it for nothing.
        self._listener.close()
        await self._end_worker(self._settings.grace_seconds + _AFTER_GRACE_SECONDS)
        if self._engine is not None:
            await self._engine.stop()
            self._engine.close()
        await self._keeping.stop_started()
        self._log.event("stopped")

    async def _end_worker(self, grace_seconds: float) -> None:
        """Send SIGTERM; after the grace period, or at a second signal to us, SIGKILL."""
        worker = self._worker
        if worker is None or worker.poll() is not None:
            return
        worker.terminate()
        ended = asyncio.ensure_future(_ended(worker))
        hurried = asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait([ended, hurried], timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ended.done():
            worker.kill()
        await ended


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended, and return its exit code."""
    if process.poll() is None:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return process.wait()
        try:
            await wait_for_exit(pidfd)
        finally:
            os.close(pidfd)
    return process.wait()


def notify(text: str) -> None:
    """Send a message to systemd, if it started us with a socket for that (sd_notify(3))."""
    path = os.environ.get(_NOTIFY_VARIABLE)
    if not path:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.connect(f"\0{path[1:]}" if path.startswith("@") else path)
        to.send(text.encode("ascii"))
