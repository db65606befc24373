"""A gateway that really listens, in a thread of the test's process, with whatever settings a test wants."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from ramet.doors.gateway.application import GatewayApplication
from ramet.doors.gateway.code_side import CodeSide
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.settings import GatewaySettings
from tests.gateway.rooms import forget_all

_START_SECONDS = 60


@dataclass
class Gateway:
    url: str
    application: GatewayApplication
    loop: asyncio.AbstractEventLoop
    lines: list[dict[str, Any]] = field(default_factory=list)
    """What it logged."""

    def do(self, work: Any) -> Any:
        """Something in its loop, from a test."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_START_SECONDS)

    @property
    def logged(self) -> str:
        return json.dumps(self.lines)


class _Lines:
    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines

    def event(self, event: str, /, level: str = "info", **values: object) -> None:
        self._lines.append({"event": event, "level": level, **values})


@contextmanager
def running_gateway(
    folder: Path,
    upstream: str,
    containers: ContainerSettings | None = None,
    *,
    lasting: bool = False,
    **settings: Any,
) -> Iterator[Gateway]:
    """``lasting``: its containers sleep on disk when it ends, as they do outside of tests."""
    started: list[Gateway] = []
    ready, stop = threading.Event(), threading.Event()
    failure: list[BaseException] = []
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(
        target=_run, args=(listener, folder, upstream, containers, lasting, settings, started, ready, stop, failure)
    )
    thread.start()
    try:
        assert ready.wait(_START_SECONDS)
        if failure:
            raise failure[0]
        yield started[0]
    finally:
        stop.set()
        thread.join(_START_SECONDS)
        listener.close()
        assert not thread.is_alive(), "the gateway did not end"


def _run(
    listener: socket.socket,
    folder: Path,
    upstream: str,
    containers: ContainerSettings | None,
    lasting: bool,
    settings: dict[str, Any],
    started: list[Gateway],
    ready: threading.Event,
    stop: threading.Event,
    failure: list[BaseException],
) -> None:
    async def serve() -> None:
        lines: list[dict[str, Any]] = []
        chosen = GatewaySettings(**{"upstream": upstream, "retry_seconds": (0.01, 0.01), **settings})
        application = GatewayApplication(chosen, CodeSide(folder, containers), _Lines(lines))
        config = uvicorn.Config(application, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        started.append(Gateway(url, application, asyncio.get_running_loop(), lines))
        ready.set()
        serving = asyncio.create_task(server.serve([listener]))
        while not stop.is_set() and not serving.done():
            await asyncio.sleep(0.01)
        server.should_exit = True
        try:
            await serving
        finally:
            if not lasting:
                await forget_all(application.services.rooms.containers)
            await application.close()

    try:
        asyncio.run(serve())
    except BaseException as error:
        failure.append(error)
        ready.set()
