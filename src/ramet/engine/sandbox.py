"""A sandbox as the engine keeps it: its body, its queue of cells and turns, its REPL of the moment."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from ramet.engine import losses
from ramet.engine.cell import Cell, Collected
from ramet.engine.early_cells import EarlyCells
from ramet.engine.executions import Executions, Shelf
from ramet.engine.lifetimes import Clock
from ramet.engine.network.exposing import Exposures
from ramet.engine.network.network import Network
from ramet.engine.network.preparing import PreparedNetwork, taken_door
from ramet.engine.network.proxy import Proxy
from ramet.engine.repl import Ending, Repl
from ramet.engine.replay import Replay
from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.engine.succession import Past, Retired
from ramet.engine.terminals import Terminals
from ramet.engine.tools.service import ToolService
from ramet.engine.turn import Turn
from ramet.errors import ExecutionCancelled, LimitReached, RametError, SandboxClosed, SandboxLost
from ramet.isolation.skeleton import COMMAND_FOLDER
from ramet.protocol.bounding import Tail
from ramet.protocol.calls import Outcome
from ramet.protocol.specs import SandboxSpec
from ramet.protocol.tools import GivenTools

_LOOK_SECONDS = 1.0


class Sandbox:
    """Owns a body. One cell runs, or one turn is held, at a time; the others wait in order of arrival.

    ``past``: that of the sandbox whose copy the body is; None for a body that was thawed from a template.
    ``parent``: the id of that sandbox, where it is known.
    ``network``: its own, if it has one. No secret is anywhere else: not in the spec, not in what a snapshot keeps.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        body: Body,
        settings: Settings,
        past: Past | None = None,
        parent: str | None = None,
        shelf: Shelf | None = None,
        network: Network | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        self.id = sandbox_id
        self.spec = replace(spec, network=None, secrets=())
        self.body = body
        body.owner = spec.owner
        self.parent = parent
        self._settings = settings
        self._background = Tail(settings.background_bytes)
        self.replay = Replay(settings)
        self.executions = Executions(settings, shelf or Shelf(settings.all_executions_bytes), spec.owner)
        fresh = past is None and body.prepared is None
        self.repl = Repl(body, settings, self._background, self.replay, self._on_cell_end, fresh)
        self._queue: deque[Cell | Turn] = deque()
        self._early = EarlyCells(settings.early_seconds, self._submit_late)
        self._current: Cell | Turn | None = None
        self._file_calls: set[asyncio.Future[None]] = set()
        self._terminals: Terminals | None = None  # made when first asked for
        self.clock = Clock(spec.lifetime, self._in_use)
        self._past = _first_past(body) if past is None else replace(past)
        self.tools: ToolService | None = None  # made for one that is given some
        if self._past.tools is not None:
            self.tools = ToolService(body, settings, self._past.tools)
        self.network = network
        self.exposures = Exposures(proxy or Proxy(settings), body)
        self._outdated = self._variables() != self._past.variables  # what the REPL's memory has of the network
        self._spilling = 0  # files of output that are being written
        self._preparing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self.when_closed: Callable[[], None] | None = None  # called once, when all of it is gone
        self._ended = f"sandbox {sandbox_id} is closed"  # what to say of it, once it is

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
    def waiting(self) -> int:
        return len(self._queue) + len(self._early)

    @property
    def past(self) -> Past:
        """As it is now."""
        return replace(self._past, secrets=self.network.traces() if self.network is not None else ())

    def whole_spec(self) -> SandboxSpec:
        """What one like it is made from, with its network and its secrets as they are now. Not to be kept."""
        if self.network is None:
            return self.spec
        secrets = tuple(secret.spec for secret in self.network.secrets)
        return replace(self.spec, network=self.network.spec, secrets=secrets)

    @property
    def owner(self) -> str:
        return self.spec.owner

    @property
    def terminals(self) -> Terminals:
        self._look_again()
        if self._terminals is None:
            self._terminals = Terminals(self.body, self._settings, self.clock.touch)
        return self._terminals

    @property
    def _shows_folders(self) -> bool:
        """Folders of the host, read-only: what the host changes there is seen when they are looked at anew."""
        return any(not mount.writable for mount in self.spec.mounts)

    async def refresh(self) -> None:
        """See what the host has changed in folders that are shown, if there are any."""
        if self._shows_folders:
            await self.body.refresh()

    def _look_again(self) -> None:
        """While it is in use, what the host changes in folders that it shows is seen within a second or so."""
        if self._looking is None and self._shows_folders:
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def _keep_looking(self) -> None:
        try:
            await asyncio.sleep(_LOOK_SECONDS)
            while self._closing is None and self._in_use():
                await self.body.refresh()
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._looking = None

    def _in_use(self) -> bool:
        return (
            self._current is not None
            or bool(self._queue)
            or bool(self._early)
            or bool(self._file_calls)
            or (self._terminals is not None and self._terminals.attached > 0)
        )

    async def configure(self) -> None:
        """For a REPL that was thawed from a template. What it is to have of its network can wait for its first cell."""
        if self.spec.environment or self.spec.cwd is not None:
            await self.adjust(dict(self.spec.environment), self.spec.cwd)

    async def adjust(self, environment: Mapping[str, str], cwd: str | None) -> None:
        """Give the REPL what it is to have now, of its owner's and of its network's, and take away what it had."""
        wanted, had = self._variables(), self._past.variables
        changed = {name: value for name, value in wanted.items() if had.get(name) != value}
        forget = {name: value for name, value in had.items() if name not in wanted}
        commands = self.commands if self._past.commands is None or "PATH" in environment else None
        await self.repl.configure({**environment, **changed}, cwd, forget, commands)
        self._past.variables = wanted
        self._past.commands = self._past.commands or self.commands
        self._outdated = False

    def _variables(self) -> dict[str, str]:
        """Those of its network. What the owner has set stays the owner's."""
        return {} if self.network is None else self.network.variables(dict(self.spec.environment))

    @property
    def commands(self) -> str | None:
        """A folder of programs that know of the engine, which come before others of their names.

        It is on the PATH that sandboxes begin with. Those with a network have variables that go with it.
        """
        own_path = any(name == "PATH" for name, _ in self.spec.environment)
        return COMMAND_FOLDER if self.network is not None or own_path else None

    async def environment(self) -> dict[str, str]:
        """For a program beside the REPL; its network is there when this returns."""
        if self.network is not None:
            await self.network.opened()
        return {**dict(self.spec.environment), **self._variables()}

    async def give_tools(self, tools: GivenTools) -> None:
        """In force for cells that begin from now on; no tools take all away."""
        if self._closing is not None:
            raise SandboxClosed(f"cannot give tools: {self._ended}")
        self._past.tools = tools
        if self.tools is None:
            self.tools = ToolService(self.body, self._settings, tools)
        self.tools.given = tools
        self.repl.tell_tools_anew()
        while not (service := self.tools).ready:
            try:
                await service.open()  # now, so that no cell has to wait for it
            except RametError:
                if service is self.tools:
                    raise
                # Another body took the place of this one meanwhile.

    def submit(self, cell: Cell, after: str | None = None) -> None:
        """Run a cell now, or when those before it are over. Not before the execution ``after``, if that is to come."""
        if after is not None and not self._has_come(after):
            self._check_queue("run a cell")
            self._early.hold(cell, after)
            return
        self._enqueue(cell, "run a cell")
        self._follow(cell)

    def _has_come(self, execution: str) -> bool:
        known = self.executions.known(execution)
        return known is not None and (known.cell is None or known.cell not in self._early)

    def _follow(self, cell: Cell) -> None:
        """Those that came before this one, though it was sent before them."""
        come = deque((cell,))
        while come:
            for early in self._early.follow(come.popleft().execution):
                self._enqueue_or_tell(early)
                come.append(early)

    def _submit_late(self, cell: Cell) -> None:
        self._enqueue_or_tell(cell)
        self._follow(cell)

    def _enqueue_or_tell(self, cell: Cell) -> None:
        try:
            self._enqueue(cell, "run a cell")
        except RametError as error:
            cell.on_error(error)

    def queue_turn(self, needs_repl: bool) -> Turn:
        """A turn between two cells, now or when those before it are over."""
        turn = Turn(needs_repl, self._leave)
        self._enqueue(turn, "do this")
        return turn

    def _check_queue(self, what: str) -> None:
        if self._closing is not None:
            raise SandboxClosed(f"cannot {what}: {self._ended}")
        if self.waiting >= self._settings.waiting_cells:
            raise LimitReached(
                f"cannot {what}: {self.waiting} cells are already waiting in sandbox {self.id}",
                hint="wait for some results first, or use more sandboxes",
            )

    def _enqueue(self, item: Cell | Turn, what: str) -> None:
        self._check_queue(what)
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

    def cancel(self, cell: Cell, why: str) -> bool:
        """Drop a waiting cell, which is told to its caller, or interrupt a running one. False if it is over."""
        if cell is self._current and self.repl.interrupt():
            return True
        if cell is self._current and self._preparing is not None:
            cell.abandoned = True  # it will not begin when the new REPL is there
        elif cell in self._queue or cell in self._early:
            self._unqueue(cell)
        else:
            return False
        cell.on_error(ExecutionCancelled(f"the cell was cancelled: {why}"))
        return True

    def _leave(self, turn: Turn) -> None:
        """A turn is over, or was given up."""
        if turn is not self._current:
            self._unqueue(turn)
        elif self._preparing is None:  # else the revival goes on, and then with the next in the queue
            self._next()

    def _unqueue(self, item: Cell | Turn) -> None:
        if isinstance(item, Cell) and self._early.remove(item):
            return
        try:
            self._queue.remove(item)
        except ValueError:
            pass  # over already

    def interrupt(self) -> bool:
        """Interrupt the running cell. False if none runs."""
        if isinstance(self._current, Cell) and self._preparing is not None:
            self._current.interrupted = True  # as soon as it begins
            return True
        return self.repl.interrupt()

    def begin_spill(self) -> str:
        """A name for the file of an output that is too long for a result."""
        # Only now: of a file that is being written, part is not in the file system yet, and would be forgotten.
        self._past.spilled_bytes = self.spilled_bytes
        self._spilling += 1
        self._past.spills += 1
        return f"output-{self._past.spills}"

    @property
    def spilled_bytes(self) -> int:
        """Output that the engine wrote into files of the sandbox, which take memory that no limit of the kernel counts.

        Not more than all files together take: what the sandbox removed is not held against it, what it renamed is.
        """
        spilled_bytes = self._past.spilled_bytes
        if spilled_bytes and not self._spilling:
            with suppress(OSError):  # its body is being closed
                found = os.fstatvfs(self.body.root)
                return min(spilled_bytes, (found.f_blocks - found.f_bfree) * found.f_frsize)
        return spilled_bytes

    def take_spill(self, size_bytes: int) -> bool:
        limits = self.spec.limits
        at_most = min(limits.memory_bytes, limits.disk_bytes)
        if self._past.spilled_bytes + size_bytes > at_most:
            return False
        self._past.spilled_bytes += size_bytes
        return True

    def end_spill(self, given_back_bytes: int) -> None:
        self._spilling -= 1
        self._past.spilled_bytes = max(0, self._past.spilled_bytes - given_back_bytes)

    async def close(self, why: str | None = None) -> None:
        """End everything. Cells that run or wait are cancelled."""
        if self._closing is None:
            self._ended = why or f"sandbox {self.id} was closed"
            self._closing = asyncio.ensure_future(self._close())
            if (when_closed := self.when_closed) is not None:
                self._closing.add_done_callback(lambda _: when_closed())
        await asyncio.shield(self._closing)

    def wind_down(self, why: str) -> None:
        """It ends soon, after one more turn. Cells are cancelled as when it closes; a running one is interrupted.

        Only for one that nobody can find any more.
        """
        self._ended = why
        self.clock.stop()
        self._tell_all(why)
        if isinstance(self._current, Cell):
            self._current.abandoned = True
            self._current.sink.abandon()
            self.repl.interrupt()

    async def _close(self) -> None:
        self.clock.stop()
        self._stop_looking()
        turn = self._current if isinstance(self._current, Turn) else None
        self._cancel_all()
        self.repl.detach()
        if self.tools is not None:
            self.tools.close()
        if self.network is not None:
            self.network.close()
        self.exposures.close()
        if self._terminals is not None:
            await self._terminals.close()
        if turn is not None:
            await turn.released.wait()
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        await self.body.close()

    def _cancel_all(self) -> None:
        if isinstance(self._current, Cell):
            self._current.sink.discard()
        self._tell_all(self._ended)
        self._current = None
        self.executions.clear()

    def _tell_all(self, why: str) -> None:
        """Those in the queue, and the one whose turn it is, are given up."""
        items = [*self._queue, *self._early.take_all()]
        self._queue.clear()
        if self._current is not None:
            items.insert(0, self._current)
        for item in items:
            if isinstance(item, Turn):
                item.on_error(SandboxClosed(f"the call was cancelled: {why}"))
            elif not item.abandoned:
                item.on_error(ExecutionCancelled(f"the cell was cancelled: {why}"))

    # Another body

    def file_call(self) -> asyncio.Future[None]:
        """To be set when a call that is about to use the files of this body is over."""
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._file_calls.add(call)
        call.add_done_callback(self._file_calls.discard)
        call.add_done_callback(lambda _: self.clock.touch())
        return call

    def become(self, body: Body, spec: SandboxSpec, past: Past) -> Retired:
        """Go on with a body that was thawed from a sandbox. Only in a turn."""
        retired = self._retire()
        self.body, self.spec = body, self._own(spec)
        body.owner = self.owner
        self._background = Tail(self._settings.background_bytes)
        self.repl = Repl(body, self._settings, self._background, self.replay, self._on_cell_end, fresh=False)
        self._file_calls = set()
        self._past = self._past.joined_by(past)
        self._renew_tools()
        self._renew_network(None)
        return retired

    def take_over(self, winner: Sandbox) -> Retired:
        """Go on with all that the winner is; the winner is no more. Only in a turn of both."""
        retired = self._retire(winner._terminals)
        self.body, self.spec = winner.body, self._own(winner.spec)
        self._background = winner._background
        self.repl = winner.repl
        self.repl.on_cell_end = self._on_cell_end
        self.repl.replay = self.replay
        self._file_calls = winner._file_calls
        self._past = self._past.joined_by(winner.past)
        self._renew_tools()
        self._renew_network(winner)
        self.replay.append(winner.replay)
        winner._dissolve(self)
        return retired

    def _own(self, spec: SandboxSpec) -> SandboxSpec:
        """The spec of another, with what goes with the id of this one."""
        own = self.spec
        return replace(spec, owner=own.owner, lifetime=own.lifetime, persistent=own.persistent)

    def _renew_tools(self) -> None:
        """The tool socket is in the network of one body."""
        tools = self._past.tools
        self.tools = None if tools is None else ToolService(self.body, self._settings, tools)

    def _renew_network(self, winner: Sandbox | None) -> None:
        """Its rules and secrets go with the id, its sockets with the body: those of a winner are in there already."""
        given_up = winner.network if winner is not None else None
        if winner is not None:
            winner.network = None
            winner.exposures.close()
        if self.network is not None:
            self.network.recognise(self._past.secrets)
            self.network.renew(self.body, given_up, taken_door(self.body))
        elif given_up is not None:
            given_up.close()
        self.exposures.renew(self.body)
        self._outdated = self._variables() != self._past.variables

    def _retire(self, more: Terminals | None = None) -> Retired:
        self.repl.detach()
        if self.tools is not None:
            self.tools.close()
        terminals = [some for some in (self._terminals, more) if some is not None]
        self._terminals = None
        return Retired(self.body, terminals, self._file_calls, self._settings.retire_seconds)

    def _dissolve(self, into: Sandbox) -> None:
        self._ended = merged_message(self.id, into.id)
        self.clock.stop()
        self._stop_looking()
        self._closing = asyncio.get_running_loop().create_future()
        self._closing.set_result(None)
        self._tell_all(self._ended)
        self._current = None
        if self.tools is not None:
            self.tools.close()
        into.executions.adopt(self.executions)

    # The queue

    def _begin(self, item: Cell | Turn) -> None:
        self._current = item
        if self.repl.alive and (isinstance(item, Turn) or self._ready()):
            self._start(item)
        elif isinstance(item, Turn) and not item.needs_repl:
            item.begin()
        else:
            self._preparing = asyncio.get_running_loop().create_task(self._prepare(item))

    def _ready(self) -> bool:
        """All that a cell needs besides a REPL is there."""
        return (
            (self.tools is None or self.tools.ready)
            and (self.network is None or self.network.ready)
            and not self._outdated
            and not self._shows_folders
        )

    def _start(self, item: Cell | Turn) -> None:
        if isinstance(item, Turn):
            item.begin()
            return
        self._past.cells += 1
        if self.tools is not None:
            self.tools.begin_cell(item, self.repl)
        self.repl.run(item, self._past.cells)
        if self._past.restarted:
            self.repl.note(losses.restarted(self._past.why_restarted))
        if item.interrupted:
            self.repl.interrupt()

    def _on_cell_end(self, cell: Cell, ending: Ending) -> None:
        if self.tools is not None:
            self.tools.end_cell()
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
        if cell.tool_records is not None:
            outcome.tool_calls = cell.tool_records.encoded()
            outcome.tool_calls_dropped = cell.tool_records.dropped
        # Told to the cell that began in the fresh REPL. If its caller has left, the next one is told, unless somebody
        # knows of the loss already by the result of the cell that it happened in.
        if not cell.abandoned or self._past.loss_told:
            self._past.restarted = self._past.loss_told = False
        if not cell.abandoned:
            self._past.loss_told = ending.state == "lost"
            cell.on_outcome(outcome)
        self.replay.exited(ending.exit_code, cell.execution)
        self._next()

    def _next(self) -> None:
        self.clock.touch()
        self._current = None
        if self._queue and self._closing is None:
            self._begin(self._queue.popleft())

    async def _prepare(self, item: Cell | Turn) -> None:
        """All that a cell or turn needs, then itself."""
        error: RametError | None = None
        try:
            if not self.repl.alive:
                await self._revive()
            if self.tools is not None and not self.tools.ready and self._closing is None:
                await self.tools.open()
            if isinstance(item, Cell) and self._closing is None:
                if self._outdated and self._closing is None:
                    await self.adjust({}, None)  # while its network is being opened
                if self.network is not None:
                    await self.network.opened()
                await self.refresh()
                self._look_again()
        except RametError as cause:
            error = cause
        except Exception as cause:
            error = SandboxLost(f"the REPL of sandbox {self.id} could not be started again: {cause}")
        self._preparing = None
        if self._closing is not None or item is not self._current:
            return
        if item.abandoned:
            self._next()
        elif error is not None:
            item.on_error(error)
            self._next()
        elif not self.repl.alive:
            item.on_error(SandboxLost(f"the REPL of sandbox {self.id} ended as soon as it was started again"))
            self._next()
        else:
            self._start(item)

    async def _revive(self) -> None:
        """A fresh REPL in the same pod."""
        self.repl.detach()
        # One that could not be configured was let go of; what ended before it is what was lost.
        self._past.why_restarted = self.repl.why_ended or self._past.why_restarted
        await self.body.revive()
        if self._closing is not None:
            return
        self.repl = Repl(self.body, self._settings, self._background, self.replay, self._on_cell_end)
        self._past.restarted = True
        self._past.variables, self._past.commands = {}, None
        self._outdated = self._variables() != self._past.variables
        try:
            await self.configure()
        except BaseException:
            self.repl.detach()  # not configured is not usable: the next cell tries again from the start
            raise


def _first_past(body: Body) -> Past:
    """Of a REPL that was thawed from a template; it may have been told things while it waited."""
    prepared = body.prepared
    if isinstance(prepared, PreparedNetwork):
        return Past(variables=prepared.variables, commands=prepared.commands)
    return Past()


def merged_message(sandbox_id: str, into: str) -> str:
    return f"sandbox {sandbox_id} was merged; its state continues in sandbox {into}"
