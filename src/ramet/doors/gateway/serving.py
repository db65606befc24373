"""The gateway's process: runs uvicorn around the application, and ends it gracefully."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import uvloop

from ramet import AsyncSandbox, close_engine
from ramet.doors.gateway.application import GatewayApplication
from ramet.doors.gateway.code_side import CodeSide
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.services import GatewayLog
from ramet.doors.gateway.settings import GatewaySettings
from ramet.web.connection_limits import ConnectionLimits, protocol_class
from ramet.web.lifecycle import STOP_SIGNALS, WebServer, descriptor_limit

_GRACE_SECONDS = 20
# After the grace period turns are cancelled. Their clients get an error within this time.
_LAST_WORDS_SECONDS = 2


def serve(
    listener: socket.socket,
    settings: GatewaySettings,
    containers: ContainerSettings,
    folder: Path,
    log: GatewayLog,
    announce: Callable[[], None],
) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT; requests then have some time to end. A second one hurries.

    ``announce`` is called when a first sandbox has shown that sandboxes can be made, and clients can connect.
    """
    for name in ("ramet.doors.gateway", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(_Passing(log))
    try:
        uvloop.run(_serve(listener, settings, containers, folder, log, announce))
    finally:
        if containers.url is None:
            close_engine()


async def _serve(
    listener: socket.socket,
    settings: GatewaySettings,
    containers: ContainerSettings,
    folder: Path,
    log: GatewayLog,
    announce: Callable[[], None],
) -> None:
    application = GatewayApplication(settings, CodeSide(folder, containers), log)
    try:
        await _try_out(containers)
        application.services.rooms.containers.start()
        # The descriptor limit is not raised: an engine of our own, and so the code in its sandboxes, would inherit it.
        limits = ConnectionLimits().fitting(descriptor_limit())
        server = WebServer(application, protocol_class(limits), shutdown_seconds=_GRACE_SECONDS + _LAST_WORDS_SECONDS)
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, _stop, server, application, log)
        serving = asyncio.create_task(server.serve([listener]))
        announce()
        await serving
    finally:
        await application.close()
        log.event("stopped")


async def _try_out(containers: ContainerSettings) -> None:
    """Create a first sandbox, to report problems before a client meets them and to make later ones start faster."""
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


def _stop(server: WebServer, application: GatewayApplication, log: GatewayLog) -> None:
    loop = asyncio.get_running_loop()
    if server.should_exit:
        application.services.cancel_tasks()
        loop.call_later(_LAST_WORDS_SECONDS, setattr, server, "force_exit", True)
    else:
        log.event("stopping", grace_seconds=_GRACE_SECONDS)
        server.should_exit = True
        loop.call_later(_GRACE_SECONDS, application.services.cancel_tasks)


class _Passing(logging.Handler):
    """Turns records of the standard library's logging into lines of our log, without the content of errors."""

    def __init__(self, log: GatewayLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        kind = None if error is None else error.__name__
        # asyncio describes the error on further lines, with everything that is in it.
        message = record.getMessage().partition("\n")[0]
        self._log.event("trouble", level=record.levelname.lower(), message=message, error=kind)
