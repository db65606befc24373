"""The worker: runs uvicorn around the application, and drains it before it ends."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from ramet.doors.http.access.admission import Creation
from ramet.doors.http.access.audit_log import Audit
from ramet.doors.http.engine_link.events import SandboxEvent
from ramet.doors.http.engine_link.link import EngineConnections
from ramet.doors.http.processes.introducer import IntroducerClient
from ramet.doors.http.records import ServerRecords
from ramet.doors.http.requests.application import HttpApplication
from ramet.doors.http.routes.metrics import ServerMetrics
from ramet.doors.http.routes.table import ROUTES
from ramet.doors.http.settings import ServerSettings
from ramet.doors.http.state import DATABASE_NAME
from ramet.errors import EngineClosed, EngineLost, SandboxClosed
from ramet.isolation.files import interpreter
from ramet.web.connection_limits import protocol_class
from ramet.web.lifecycle import STOP_SIGNALS, WebServer, raise_descriptor_limit
from ramet.web.request_log import Log

_LOOK_SECONDS = 0.05
# How long streams have, after the grace period, to write that the server is stopping.
_LAST_WORDS_SECONDS = 2.0


def run_worker(
    settings: ServerSettings, listener: socket.socket, line: socket.socket, audit: int | None = None
) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT, then drain.

    ``line``: the socket to the introducer, see ``introducer``. ``audit``: the descriptor for lines of the audit log.
    """
    uvloop.run(Worker(settings.fitting(raise_descriptor_limit()), listener, audit).run(line))


class Worker:
    """Owns the link to the engine, the records and the HTTP server."""

    def __init__(self, settings: ServerSettings, listener: socket.socket, audit: int | None = None) -> None:
        self._settings = settings
        self._listener = listener
        self._log = Log(settings.log_format)
        folder = Path(settings.state)
        self._records = ServerRecords(folder / DATABASE_NAME, complain=self._complain)
        self._link = EngineConnections(settings.idle_engine_connections)
        self._link.on_event.append(self._record)
        self._application = HttpApplication(
            settings,
            self._link,
            self._records,
            self._log,
            Audit(audit),
            ServerMetrics(self._records.keys.name_of),
            Creation(settings, interpreter.find(sys.executable)),
            ROUTES,
        )
        self._server = WebServer(self._application, protocol_class(settings), shutdown_seconds=2)

    async def run(self, line: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        introducer = IntroducerClient(line, self._give_up)
        stop = asyncio.Event()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop.set)
        self._link.start(introducer.connection)
        with suppress(TimeoutError):
            # Wait for the engine, so that the first requests do not get 503. Without one, serve anyway and answer that.
            await asyncio.wait_for(self._engine_is_up(), self._settings.engine_seconds)
        serving = loop.create_task(self._server.serve(sockets=[self._listener]))
        # Exclude everything that exists now from later garbage collections: it stays until the end.
        gc.collect()
        gc.freeze()
        try:
            stopping = loop.create_task(stop.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not serving.done():
                # Drain while uvicorn still serves: after should_exit it does not even answer "stopping".
                await self._drain()
            self._server.should_exit = True
            await serving
        finally:
            # The link first: its watching task would ask a closed introducer for a connection.
            await self._link.close()
            introducer.close()
            self._records.close()

    async def _engine_is_up(self) -> None:
        while not self._link.up:
            await asyncio.sleep(_LOOK_SECONDS)

    async def _drain(self) -> None:
        """Let nothing new begin, wait for running calls up to the grace period, then end the others with an error."""
        self._log.event("stopping", grace_seconds=self._settings.grace_seconds)
        self._application.activity.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.grace_seconds
        while self._link.busy and loop.time() < until:
            await asyncio.sleep(_LOOK_SECONDS)
        stopping = EngineClosed("the server is stopping")
        self._link.give_up(stopping)
        self._application.relays.cut(stopping)
        until = loop.time() + _LAST_WORDS_SECONDS
        while self._server.server_state.tasks and loop.time() < until:
            await asyncio.sleep(_LOOK_SECONDS)

    def _record(self, event: SandboxEvent) -> None:
        if event.kind == "all":
            self._records.reconcile(event.sandboxes)
            self._log.event("engine up", sandboxes=len(event.sandboxes))
        elif event.kind == "begun":
            self._records.begun(event.sandboxes[0])
        elif event.kind == "ended":
            self._records.ended(event.id, event.cause, event.message)
            self._application.audit.ended(event, self._records.keys.name_of(event.owner))
            self._application.relays.cut(SandboxClosed(event.message, details={"cause": event.cause}), event.id)
        else:
            self._application.relays.cut(EngineLost("the engine ended, and all its sandboxes with it"))
            self._log.event("engine down", level="warning")

    def _give_up(self) -> None:
        """End the process: it is useless without its introducer, and the supervisor starts both anew."""
        self._log.event("introducer lost", level="error")
        os._exit(1)

    def _complain(self, message: str) -> None:
        self._log.event("records", level="error", message=message)
