"""Objects that all requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet.doors.gateway.code_side import CodeSide
from ramet.doors.gateway.metrics import GatewayMetrics
from ramet.doors.gateway.requests.tool_texts import ContainerFacts
from ramet.doors.gateway.running.cell_run import CellRun
from ramet.doors.gateway.settings import GatewaySettings
from ramet.doors.gateway.turns.threads import Threads
from ramet.doors.gateway.upstream.client import Upstream
from ramet.integrations.reach import reach


class GatewayLog(Protocol):
    """A log for requests and events. No line holds content, a key or a file name."""

    def event(self, event: str, /, level: str = "info", **values: object) -> None: ...


class NoLog:
    def event(self, event: str, /, level: str = "info", **values: object) -> None:
        pass


@dataclass
class Services:
    """Shared objects and background tasks. The application owns and closes them."""

    settings: GatewaySettings
    upstream: Upstream
    rooms: CodeSide
    threads: Threads
    metrics: GatewayMetrics
    log: GatewayLog = field(default_factory=NoLog)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _waiting: list[CellRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics.watch("pending", "Cells that wait for results of a client's tools.", self._pending)
        self.metrics.watch("threads", "Threads that can be continued.", lambda: len(self.threads))

    @property
    def surroundings(self) -> ContainerFacts:
        settings = self.rooms.containers.settings
        return ContainerFacts(settings.calls.cell_seconds, reach(settings.network, settings.secrets))

    def watch(self, run: CellRun | None) -> None:
        """Count a cell that waits for its client."""
        self._pending()
        if run is not None and not any(run is one for one in self._waiting):
            self._waiting.append(run)

    def _pending(self) -> float:
        self._waiting = [run for run in self._waiting if run.waiting]
        return len(self._waiting)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task that outlives the request that began it, but not the gateway."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def end_tasks(self) -> None:
        self.cancel_tasks()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def failed(self, where: str, error: BaseException) -> None:
        """Log an unexpected error: its kind and place only, because its message may hold data of a user."""
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        code = None if traceback is None else f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        self.log.event("failed", level="error", where=where, error=type(error).__name__, at=code)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(task.get_name(), error)
