"""A sandbox as the engine keeps it: its body, its queue of cells, its REPL of the moment."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict

from ramet.engine.cell import Cell, Collected
from ramet.engine.repl import Ending, Repl
from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.errors import ExecutionCancelled, LimitReached, RametError, SandboxClosed, SandboxLost
from ramet.protocol.bounding import Tail
from ramet.protocol.calls import Outcome
from ramet.protocol.specs import SandboxSpec


class Sandbox:
    """Owns a body. One cell runs at a time, the others wait in order of arrival."""

    def __init__(self, sandbox_id: str, spec: SandboxSpec, body: Body, settings: Settings) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.body = body
        self._settings = settings
        self._background = Tail(settings.background_bytes)
        self._repl = Repl(body, settings, self._background, self._on_cell_end)
        self._queue: deque[Cell] = deque()
        self._current: Cell | None = None
        self._cells_begun = 0
        self._spills_begun = 0
        # The namespace was lost and nobody has been told yet.
        self._restarted = False
        self._reviving: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} {self.state}, {len(self._queue)} waiting>"

    @property
    def state(self) -> str:
        if self._closing is not None:
            return "closed"
        if self._current is not None:
            return "running"
        return "idle" if self._repl.alive else "lost"

    async def configure(self) -> None:
        await self._repl.configure(dict(self.spec.environment), self.spec.cwd)

    def submit(self, cell: Cell) -> None:
        """Run a cell now, or when those before it are over."""
        if self._closing is not None:
            raise SandboxClosed(f"cannot run a cell: sandbox {self.id} is closed")
        if len(self._queue) >= self._settings.waiting_cells:
            raise LimitReached(
                f"cannot run a cell: {len(self._queue)} cells wait in sandbox {self.id} already",
                hint="wait for results before giving more, or use more sandboxes",
            )
        if self._current is None:
            self._begin(cell)
        else:
            self._queue.append(cell)

    def abandon(self, cell: Cell) -> None:
        """The caller went away: a waiting cell is dropped, a running one interrupted."""
        cell.abandoned = True
        if cell is self._current:
            self._repl.interrupt()
        else:
            try:
                self._queue.remove(cell)
            except ValueError:
                pass  # over already

    def interrupt(self) -> bool:
        """Interrupt the running cell. False if none runs."""
        return self._repl.interrupt()

    def next_spill(self) -> str:
        """A name for the files of an output that is too long for a result."""
        self._spills_begun += 1
        return f"output-{self._spills_begun}"

    def info(self) -> dict[str, object]:
        return {
            "id": self.id,
            "state": self.state,
            "pid": self.body.pid,
            "python": self.spec.template.python,
            "template": self.spec.template.name,
            "waiting": len(self._queue),
            "limits": asdict(self.spec.limits),
            "usage": dict(self.body.usage()),
            "walls": dict(self.body.walls()),
        }

    async def close(self) -> None:
        """End everything. Cells that run or wait are cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        cells = list(self._queue)
        self._queue.clear()
        if self._current is not None:
            cells.insert(0, self._current)
            self._current.sink.discard()
            self._current = None
        self._repl.detach()
        for cell in cells:
            cell.on_error(ExecutionCancelled(f"the cell was cancelled: sandbox {self.id} was closed"))
        if self._reviving is not None:
            await asyncio.wait([self._reviving])
        await self.body.close()

    def _begin(self, cell: Cell) -> None:
        self._current = cell
        if self._repl.alive:
            self._start(cell)
        else:
            self._reviving = asyncio.get_running_loop().create_task(self._revive(cell))

    def _start(self, cell: Cell) -> None:
        self._cells_begun += 1
        self._repl.run(cell, self._cells_begun)

    def _on_cell_end(self, cell: Cell, ending: Ending) -> None:
        # Nearly always at once; a large output has to reach its file first.
        cell.sink.collect(lambda collected: self._deliver(cell, ending, collected))

    def _deliver(self, cell: Cell, ending: Ending, collected: Collected) -> None:
        if cell is not self._current:
            return  # the sandbox was closed meanwhile
        outcome = Outcome(
            cell_id=cell.cell_id,
            exit_code=ending.exit_code,
            state=ending.state,
            interrupted=ending.interrupted,
            cause=ending.cause,
            restarted=self._restarted,
            error=ending.error,
            duration_seconds=ending.duration_seconds,
            stdout=collected.stdout,
            stderr=collected.stderr,
            background=cell.background,
            rich=collected.rich,
            truncated=collected.truncated,
        )
        if not cell.abandoned:
            self._restarted = False
            cell.on_outcome(outcome)
        self._next()

    def _next(self) -> None:
        self._current = None
        if self._queue and self._closing is None:
            self._begin(self._queue.popleft())

    async def _revive(self, cell: Cell) -> None:
        """A fresh REPL in the same pod, then the cell that needed it."""
        error: RametError | None = None
        self._repl.detach()
        try:
            await self.body.revive()
            if self._closing is None:
                self._repl = Repl(self.body, self._settings, self._background, self._on_cell_end)
                self._restarted = True
                await self.configure()
        except RametError as cause:
            error = cause
        except Exception as cause:
            error = SandboxLost(f"the REPL of sandbox {self.id} could not be started again: {cause}")
        self._reviving = None
        if self._closing is not None or cell is not self._current:
            return
        if error is not None:
            # Not configured is not usable: the next cell tries again from the start.
            self._repl.detach()
            cell.on_error(error)
            self._next()
        elif cell.abandoned:
            self._next()
        elif not self._repl.alive:
            cell.on_error(SandboxLost(f"the REPL of sandbox {self.id} ended as soon as it was started again"))
            self._next()
        else:
            self._start(cell)
