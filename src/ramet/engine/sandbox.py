"""A sandbox as the engine keeps it: its body, its queue of cells and turns, its REPL of the moment."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict, dataclass, replace

from ramet.engine.cell import Cell, Collected
from ramet.engine.repl import Ending, Repl
from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.engine.turn import Turn
from ramet.errors import ExecutionCancelled, LimitReached, RametError, SandboxClosed, SandboxLost
from ramet.protocol.bounding import Tail
from ramet.protocol.calls import Outcome
from ramet.protocol.specs import SandboxSpec


@dataclass(slots=True)
class Past:
    """What a copy of a sandbox has in common with it. Changed by each cell, so a copy gets a copy."""

    cells: int = 0  # begun
    spills: int = 0  # begun
    restarted: bool = False  # the namespace was lost and nobody has been told yet

    def joined_by(self, other: Past) -> Past:
        """For a sandbox that goes on as the other one: numbers that were seen in either are not given again."""
        return Past(max(self.cells, other.cells), max(self.spills, other.spills), other.restarted)


class Sandbox:
    """Owns a body. One cell runs, or one turn is held, at a time; the others wait in order of arrival.

    ``past``: that of the sandbox whose copy the body is; None for a body that was thawed from a template.
    """

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, body: Body, settings: Settings, past: Past | None = None
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.body = body
        self._settings = settings
        self._background = Tail(settings.background_bytes)
        self.repl = Repl(body, settings, self._background, self._on_cell_end, fresh=past is None)
        self._queue: deque[Cell | Turn] = deque()
        self._current: Cell | Turn | None = None
        self._file_calls: set[asyncio.Future[None]] = set()
        self._past = Past() if past is None else replace(past)
        self._reviving: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._merged_into: str | None = None

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} {self.state}, {len(self._queue)} waiting>"

    @property
    def state(self) -> str:
        if self._closing is not None:
            return "closed"
        if self._current is not None:
            return "running"
        return "idle" if self.repl.alive else "lost"

    @property
    def past(self) -> Past:
        """As it is now."""
        return replace(self._past)

    async def configure(self) -> None:
        await self.repl.configure(dict(self.spec.environment), self.spec.cwd)

    def submit(self, cell: Cell) -> None:
        """Run a cell now, or when those before it are over."""
        self._enqueue(cell, "run a cell")

    def queue_turn(self, needs_repl: bool) -> Turn:
        """A turn between two cells, now or when those before it are over."""
        turn = Turn(needs_repl, self._leave)
        self._enqueue(turn, "do this")
        return turn

    def _enqueue(self, item: Cell | Turn, what: str) -> None:
        if self._closing is not None:
            raise SandboxClosed(f"cannot {what}: {self._obituary()}")
        if len(self._queue) >= self._settings.waiting_cells:
            raise LimitReached(
                f"cannot {what}: {len(self._queue)} cells wait in sandbox {self.id} already",
                hint="wait for results before giving more, or use more sandboxes",
            )
        if self._current is None:
            self._begin(item)
        else:
            self._queue.append(item)

    def abandon(self, cell: Cell) -> None:
        """The caller went away: a waiting cell is dropped, a running one interrupted."""
        cell.abandoned = True
        if cell is self._current:
            self.repl.interrupt()
        else:
            self._unqueue(cell)

    def _leave(self, turn: Turn) -> None:
        """A turn is over, or was given up."""
        if turn is not self._current:
            self._unqueue(turn)
        elif self._reviving is None:  # else the revival goes on, and then with the next in the queue
            self._next()

    def _unqueue(self, item: Cell | Turn) -> None:
        try:
            self._queue.remove(item)
        except ValueError:
            pass  # over already

    def interrupt(self) -> bool:
        """Interrupt the running cell. False if none runs."""
        return self.repl.interrupt()

    def next_spill(self) -> str:
        """A name for the files of an output that is too long for a result."""
        self._past.spills += 1
        return f"output-{self._past.spills}"

    def info(self) -> dict[str, object]:
        body = self.body  # of one moment: another one may take its place
        return {
            "id": self.id,
            "state": self.state,
            "pid": body.pid,
            "python": self.spec.template.python,
            "template": self.spec.template.name,
            "waiting": len(self._queue),
            "limits": asdict(self.spec.limits),
            "usage": dict(body.usage()),
            "walls": dict(body.walls()),
        }

    async def close(self) -> None:
        """End everything. Cells that run or wait are cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        turn = self._current if isinstance(self._current, Turn) else None
        self._cancel_all(f"sandbox {self.id} was closed")
        self.repl.detach()
        if turn is not None:
            await turn.released.wait()
        if self._reviving is not None:
            await asyncio.wait([self._reviving])
        await self.body.close()

    def _cancel_all(self, why: str) -> None:
        items = list(self._queue)
        self._queue.clear()
        if self._current is not None:
            items.insert(0, self._current)
            if isinstance(self._current, Cell):
                self._current.sink.discard()
            self._current = None
        for item in items:
            if isinstance(item, Turn):
                item.on_error(SandboxClosed(f"this was given up: {why}"))
            else:
                item.on_error(ExecutionCancelled(f"the cell was cancelled: {why}"))

    def _obituary(self) -> str:
        if self._merged_into is None:
            return f"sandbox {self.id} is closed"
        return f"sandbox {self.id} was merged: its state goes on as sandbox {self._merged_into}"

    # Another body

    def file_call(self) -> asyncio.Future[None]:
        """To be set when a call that is about to use the files of this body is over."""
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._file_calls.add(call)
        call.add_done_callback(self._file_calls.discard)
        return call

    def become(self, body: Body, spec: SandboxSpec, past: Past) -> Retired:
        """Go on with a body that was thawed from a sandbox. Only in a turn."""
        retired = self._retire()
        self.body, self.spec = body, spec
        self._background = Tail(self._settings.background_bytes)
        self.repl = Repl(body, self._settings, self._background, self._on_cell_end, fresh=False)
        self._file_calls = set()
        self._past = self._past.joined_by(past)
        return retired

    def take_over(self, winner: Sandbox) -> Retired:
        """Go on with all that the winner is; the winner is no more. Only in a turn of both."""
        retired = self._retire()
        self.body, self.spec = winner.body, winner.spec
        self._background = winner._background
        self.repl = winner.repl
        self.repl.on_cell_end = self._on_cell_end
        self._file_calls = winner._file_calls
        self._past = self._past.joined_by(winner._past)
        winner._dissolve(self.id)
        return retired

    def _retire(self) -> Retired:
        self.repl.detach()
        return Retired(self.body, self._file_calls, self._settings.retire_seconds)

    def _dissolve(self, into: str) -> None:
        self._merged_into = into
        self._closing = asyncio.get_running_loop().create_future()
        self._closing.set_result(None)
        self._cancel_all(self._obituary())

    # The queue

    def _begin(self, item: Cell | Turn) -> None:
        self._current = item
        if self.repl.alive or (isinstance(item, Turn) and not item.needs_repl):
            self._start(item)
        else:
            self._reviving = asyncio.get_running_loop().create_task(self._revive(item))

    def _start(self, item: Cell | Turn) -> None:
        if isinstance(item, Turn):
            item.begin()
            return
        self._past.cells += 1
        self.repl.run(item, self._past.cells)

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
            restarted=self._past.restarted,
            error=ending.error,
            duration_seconds=ending.duration_seconds,
            stdout=collected.stdout,
            stderr=collected.stderr,
            background=cell.background,
            rich=collected.rich,
            truncated=collected.truncated,
        )
        if not cell.abandoned:
            self._past.restarted = False
            cell.on_outcome(outcome)
        self._next()

    def _next(self) -> None:
        self._current = None
        if self._queue and self._closing is None:
            self._begin(self._queue.popleft())

    async def _revive(self, item: Cell | Turn) -> None:
        """A fresh REPL in the same pod, then the cell or turn that needed it."""
        error: RametError | None = None
        self.repl.detach()
        try:
            await self.body.revive()
            if self._closing is None:
                self.repl = Repl(self.body, self._settings, self._background, self._on_cell_end)
                self._past.restarted = True
                await self.configure()
        except RametError as cause:
            error = cause
        except Exception as cause:
            error = SandboxLost(f"the REPL of sandbox {self.id} could not be started again: {cause}")
        self._reviving = None
        if self._closing is not None or item is not self._current:
            return
        if error is not None:
            # Not configured is not usable: the next cell tries again from the start.
            self.repl.detach()
            item.on_error(error)
            self._next()
        elif item.abandoned:
            self._next()
        elif not self.repl.alive:
            item.on_error(SandboxLost(f"the REPL of sandbox {self.id} ended as soon as it was started again"))
            self._next()
        else:
            self._start(item)


class Retired:
    """A body that a sandbox has given up for another one. File calls that use it may end before it is closed."""

    def __init__(self, body: Body, calls: set[asyncio.Future[None]], seconds: float) -> None:
        self._body = body
        self._calls = calls
        self._seconds = seconds

    async def close(self) -> None:
        if self._calls:
            await asyncio.wait(self._calls, timeout=self._seconds)
        await self._body.close()
