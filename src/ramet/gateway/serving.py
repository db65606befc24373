"""The gateway's process: uvicorn around the application, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
import uvloop

from ramet import AsyncSandbox, close_engine
from ramet.gateway.app import Application
from ramet.gateway.containers.settings import ContainerSettings
from ramet.gateway.rooms import Rooms
from ramet.gateway.services import Log
from ramet.gateway.settings import GatewaySettings

_GRACE_SECONDS = 20
# Then turns are ended, and tell their clients so.
_LAST_WORDS_SECONDS = 2
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(
    listener: socket.socket,
    settings: GatewaySettings,
    containers: ContainerSettings,
    folder: Path,
    log: Log,
    announce: Callable[[], None],
    protocol: type[asyncio.Protocol],
) -> None:
    """On a listening socket until SIGTERM or SIGINT: then what is being answered has some time. A second hurries.

    ``protocol`` speaks HTTP for uvicorn, and has bounds for slow, endless and silent clients.
    """
    for name in ("ramet.gateway", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(_Passing(log))
    try:
        uvloop.run(_serve(listener, settings, containers, folder, log, announce, protocol))
    finally:
        if containers.url is None:
            close_engine()


async def _serve(
    listener: socket.socket,
    settings: GatewaySettings,
    containers: ContainerSettings,
    folder: Path,
    log: Log,
    announce: Callable[[], None],
    protocol: type[asyncio.Protocol],
) -> None:
    application = Application(settings, Rooms(folder, containers), log)
    try:
        await _try_out(containers)
        config = uvicorn.Config(
            application,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            interface="asgi3",
            timeout_graceful_shutdown=_GRACE_SECONDS + _LAST_WORDS_SECONDS,
            backlog=2048,
        )
        server = _Server(config)
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, _stop, server, application, log)
        serving = asyncio.create_task(server.serve([listener]))
        announce()
        await serving
    finally:
        await application.close()
        log.event("stopped")


async def _try_out(containers: ContainerSettings) -> None:
    """A first sandbox: what cannot be is said before anybody asks for one, and the next ones are ready sooner."""
    sandbox = await AsyncSandbox.create(
        containers.template,
        python=containers.python,
        memory_mib=containers.memory_mib,
        pids=containers.pids,
        cpus=containers.cpus,
        disk_mib=containers.disk_mib,
        url=containers.url,
        api_key=containers.api_key,
    )
    await sandbox.close()


def _stop(server: _Server, application: Application, log: Log) -> None:
    loop = asyncio.get_running_loop()
    if server.should_exit:
        application.services.cancel_tasks()
        loop.call_later(_LAST_WORDS_SECONDS, setattr, server, "force_exit", True)
    else:
        log.event("stopping", grace_seconds=_GRACE_SECONDS)
        server.should_exit = True
        loop.call_later(_GRACE_SECONDS, application.services.cancel_tasks)


class _Passing(logging.Handler):
    """Lines of the standard library's logging become lines of our log. Of an error only its kind: no content."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        kind = None if error is None else error.__name__
        # asyncio describes on further lines what went wrong, with everything in it.
        message = record.getMessage().partition("\n")[0]
        self._log.event("trouble", level=record.levelname.lower(), message=message, error=kind)


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them once more at the end, and the exit code would be theirs."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
