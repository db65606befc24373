"""The server's process: uvicorn around the application, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
import uvloop

from ramet.errors import EngineClosed, EngineLost, SandboxClosed
from ramet.isolation import interpreter
from ramet.server.admission import Creation
from ramet.server.app import Application
from ramet.server.audit import Audit
from ramet.server.introductions import Introductions
from ramet.server.link import Link
from ramet.server.logs import Log
from ramet.server.metrics import Metrics
from ramet.server.news import News
from ramet.server.protection import protocol_class
from ramet.server.records import Records
from ramet.server.routes import ROUTES
from ramet.server.settings import ServerSettings
from ramet.server.state import DATABASE_NAME

_LOOK_SECONDS = 0.05
# After the grace period: streams have been told, and have so long to write it.
_LAST_WORDS_SECONDS = 2.0


def run_worker(
    settings: ServerSettings, listener: socket.socket, line: socket.socket, audit: int | None = None
) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT, then end in order.

    ``line``: see ``introductions``. ``audit``: the descriptor that takes the lines of the audit log.
    """
    uvloop.run(Worker(settings.fitting(_raise_descriptor_limit()), listener, audit).run(line))


class Worker:
    """Owns the link to the engine, the records and the HTTP server."""

    def __init__(self, settings: ServerSettings, listener: socket.socket, audit: int | None = None) -> None:
        self._settings = settings
        self._listener = listener
        self._log = Log(settings.log_format)
        folder = Path(settings.state)
        self._records = Records(folder / DATABASE_NAME, complain=self._complain)
        self._link = Link(settings.idle_engine_connections)
        self._link.on_news.append(self._record)
        self._application = Application(
            settings,
            self._link,
            self._records,
            self._log,
            Audit(audit),
            Metrics(self._records.keys.name_of),
            Creation(settings, interpreter.find(sys.executable)),
            ROUTES,
        )
        config = uvicorn.Config(
            self._application,
            http=protocol_class(settings),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            interface="asgi3",
            timeout_graceful_shutdown=2,
            backlog=2048,
        )
        self._server = _Server(config)

    async def run(self, line: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        introductions = Introductions(line, self._give_up)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        self._link.start(introductions.connection)
        with suppress(TimeoutError):
            # A server that answers its first requests with 503 helps nobody; one without an engine must still say so.
            await asyncio.wait_for(self._engine_is_up(), self._settings.engine_seconds)
        serving = loop.create_task(self._server.serve(sockets=[self._listener]))
        # What is there now stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        try:
            stopping = loop.create_task(stop.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not serving.done():
                await self._drain()
            self._server.should_exit = True
            await serving
        finally:
            await self._link.close()
            introductions.close()
            self._records.close()

    async def _engine_is_up(self) -> None:
        while not self._link.up:
            await asyncio.sleep(_LOOK_SECONDS)

    async def _drain(self) -> None:
        """Nothing new begins; what runs gets its time, then is told that it is over."""
        self._log.event("stopping", grace_seconds=self._settings.grace_seconds)
        self._application.gate.close()
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

    def _record(self, news: News) -> None:
        if news.event == "all":
            self._records.reconcile(news.sandboxes)
            self._log.event("engine up", sandboxes=len(news.sandboxes))
        elif news.event == "begun":
            self._records.begun(news.sandboxes[0])
        elif news.event == "ended":
            self._records.ended(news.id, news.cause, news.message)
            self._application.audit.ended(news, self._records.keys.name_of(news.owner))
            self._application.relays.cut(SandboxClosed(news.message, details={"cause": news.cause}), news.id)
        else:
            self._application.relays.cut(EngineLost("the engine ended, and all its sandboxes with it"))
            self._log.event("engine down", level="warning")

    def _give_up(self) -> None:
        """Without its introducer a worker is of no use: the supervisor starts another, with another introducer."""
        self._log.event("introducer lost", level="error")
        os._exit(1)

    def _complain(self, message: str) -> None:
        self._log.event("records", level="error", message=message)


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them once more at the end, and the exit code would be theirs."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _raise_descriptor_limit() -> int:
    """Each connection is a descriptor; the soft limit is low for programs that use select(2). Gives what there are."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed
