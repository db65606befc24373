"""A sandbox as the engine keeps it: its identity, its queue of cells and turns, its body and its REPL of the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from ramet.engine.cells.cell import Cell, Collected
from ramet.engine.cells.folder_refresh import FolderRefresh
from ramet.engine.cells.identity import Identity
from ramet.engine.cells.outcomes import outcome_of
from ramet.engine.cells.points import Keeping, Points
from ramet.engine.cells.queue import CellQueue
from ramet.engine.cells.recovery import Recovery
from ramet.engine.cells.repl import Ending, Repl
from ramet.engine.cells.turns import Turn
from ramet.engine.history.past import Past
from ramet.engine.making.carried_state import CarriedState, RetiredBody
from ramet.engine.network.exposed_ports import Exposures
from ramet.engine.network.network import EngineNetwork
from ramet.engine.network.prepared import PreparedNetwork, take_proxy_sockets
from ramet.engine.network.proxy import ProxyHandle
from ramet.engine.output.executions import Shelf
from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.engine.sleeping.absent_body import AbsentBody
from ramet.engine.sleeping.sleep import Sleep, StateOnDisk
from ramet.engine.terminals.terminals import Terminals
from ramet.engine.tools.service import ToolService
from ramet.errors import RametError, SandboxClosed, SandboxLost
from ramet.isolation.files.skeleton import COMMAND_FOLDER
from ramet.protocol.bounded_bytes import Tail
from ramet.protocol.tools.specs import GivenTools
from ramet.protocol.values.specs import SandboxSpec

WRITTEN_FROM_OUTSIDE = "files or values that were written from outside"


class Sandbox:
    """Owns an identity, a queue, and a body with its REPL, tools, network and terminals.

    ``carried``: that of the sandbox whose copy the body is; None for a body that was thawed from a template.
    ``network``: its own, if it has one. Secrets are in there only.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        body: Body,
        settings: Settings,
        carried: CarriedState | None = None,
        parent: str | None = None,
        shelf: Shelf | None = None,
        network: EngineNetwork | None = None,
        proxy: ProxyHandle | None = None,
    ) -> None:
        self.body = body
        body.owner = spec.owner
        self._settings = settings
        state = first_carried(body) if carried is None else replace(carried)
        shelf = shelf or Shelf(settings.all_executions_bytes)
        self.identity = Identity(sandbox_id, spec, state, parent, settings, shelf, self._in_use)
        self.id = sandbox_id
        self.sleep = Sleep()
        self.clock = self.identity.clock
        self.executions = self.identity.executions
        self.replay = self.identity.replay
        self.queue = CellQueue(self.identity, settings, self)
        self.folders = FolderRefresh(lambda: self.spec, lambda: self.body, self._in_use)
        self._background = Tail(settings.background_bytes)
        fresh = carried is None and body.prepared is None
        self.repl = Repl(body, settings, self._background, self.replay, self._on_cell_end, fresh)
        # Calls that use files of this body: a body that is replaced is closed when they are over.
        self._file_calls: set[asyncio.Future[None]] = set()
        self._terminals: Terminals | None = None  # made when first asked for
        self.tools: ToolService | None = None  # made for one that is given some
        if state.tools is not None:
            self.tools = ToolService(body, settings, state.tools)
        self.network = network
        self.exposures = Exposures(proxy or ProxyHandle(settings), body)
        # The memory of the REPL has other variables of the network than it should: set before the next cell.
        self._outdated = self._variables() != state.variables
        # Gets a REPL, tools and a network ready for the current item, which begins when it is over.
        self._preparing: asyncio.Task[None] | None = None
        self.recovery = Recovery(self)
        self.past = Past(spec.history)
        self.points: Points | None = None  # of one that a list shows
        self.keeping: Keeping | None = None  # of one that has an image, or is to have one
        self.on_disk = StateOnDisk()
        self.on_points_stopped: Callable[[], None] = lambda: None
        self._closing: asyncio.Future[None] | None = None
        self.when_closed: Callable[[], None] | None = None  # called once, when all of it is gone

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} {self.state}, {self.queue.waiting} waiting>"

    @property
    def spec(self) -> SandboxSpec:
        return self.identity.spec

    @property
    def owner(self) -> str:
        return self.identity.spec.owner

    @property
    def state(self) -> str:
        if self._closing is not None:
            return "closed"
        current = self.queue.current
        if current is not None and not (isinstance(current, Turn) and current.quiet):
            return "running"
        if self.sleep.asleep:
            return "hibernated"
        return "idle" if self.repl.alive else "lost"

    @property
    def carried(self) -> CarriedState:
        """A copy of the state that a copy of this sandbox begins with."""
        self.identity.carried.copied()
        return replace(self.identity.carried, secrets=self.network.traces() if self.network is not None else ())

    def whole_spec(self) -> SandboxSpec:
        """A spec for another like it, with its network and its secrets as they are now. Not to be kept."""
        if self.network is None:
            return self.spec
        secrets = tuple(secret.spec for secret in self.network.secrets)
        return replace(self.spec, network=self.network.spec, secrets=secrets)

    @property
    def spilled_bytes(self) -> int:
        return self.identity.spilled_bytes(self.body.root)

    @property
    def attempts(self) -> int:
        """The number of connections that it has tried."""
        return 0 if self.network is None else self.network.log.count

    def touched(self, memory: bool = False, what: str = WRITTEN_FROM_OUTSIDE) -> None:
        """Files were changed from outside, or values in its memory."""
        if memory:
            self.identity.carried.changed()
        if self.points is not None:
            self.points.touched(memory)
        self.changed(what)

    def changed(self, what: str = "") -> None:
        """Its last image is not its present state any more. ``what`` is told if it is missing after a crash."""
        if self.keeping is not None:
            self.keeping.changed(what)

    @property
    def closing(self) -> bool:
        return self._closing is not None

    def check_open(self) -> None:
        """Raise SandboxClosed if it is closing."""
        if self._closing is not None:
            raise SandboxClosed(f"the call was cancelled: {self.identity.ended}")

    @property
    def terminals(self) -> Terminals:
        self.folders.go_on()
        if self._terminals is None:
            self._terminals = Terminals(self.body, self._settings, self.clock.touch)
        return self._terminals

    def file_call(self) -> asyncio.Future[None]:
        """Register a call that uses this body's files. The caller sets the returned future when it is done."""
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._file_calls.add(call)
        call.add_done_callback(self._file_calls.discard)
        call.add_done_callback(lambda _: self.clock.touch())
        return call

    def _in_use(self) -> bool:
        return self._closing is None and (
            self.queue.busy or bool(self._file_calls) or (self._terminals is not None and self._terminals.attached > 0)
        )

    @property
    def in_use(self) -> bool:
        """Whether something of it runs or waits, or a client uses its files or terminals."""
        return self._in_use()

    # Environment, network and tools of the REPL

    async def configure(self) -> None:
        """For a REPL that was thawed from a template. Variables of its network can wait for its first cell."""
        if self.spec.environment or self.spec.cwd is not None:
            await self.adjust(dict(self.spec.environment), self.spec.cwd)

    async def adjust(self, environment: Mapping[str, str], cwd: str | None) -> None:
        """Give the REPL the variables of its owner and its network, and remove those of the network it had before."""
        carried = self.identity.carried
        wanted, had = self._variables(), carried.variables
        changed = {name: value for name, value in wanted.items() if had.get(name) != value}
        forget = {name: value for name, value in had.items() if name not in wanted}
        commands = self.commands if carried.commands is None or "PATH" in environment else None
        await self.repl.configure({**environment, **changed}, cwd, forget, commands)
        carried.variables = wanted
        carried.commands = carried.commands or self.commands
        self._outdated = False

    def _variables(self) -> dict[str, str]:
        """The environment variables of its network. Variables that the owner has set stay as they are."""
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
        """In force for cells that begin from now on; no tools take all away. Raises SandboxClosed."""
        if self._closing is not None:
            raise SandboxClosed(f"cannot give tools: {self.identity.ended}")
        self.identity.carried.tools = tools
        if self.tools is None:
            self.tools = ToolService(self.body, self._settings, tools)
        self.tools.given = tools
        self.repl.tell_tools_anew()
        # None: it has gone to sleep meanwhile, and makes another service when it wakes.
        while (service := self.tools) is not None and not service.ready:
            try:
                await service.open()  # now, so that no cell has to wait for it
            except RametError:
                if service is self.tools:
                    raise
                # Another body took the place of this one during the wait, with another service.

    # The current cell or turn

    @property
    def preparing(self) -> bool:
        return self._preparing is not None

    def begin(self, item: Cell | Turn) -> None:
        if self.repl.alive and (isinstance(item, Turn) or self._ready()):
            self._start(item)
        elif isinstance(item, Turn) and not item.needs_repl and not self.sleep.asleep:
            item.begin()
        else:
            self._preparing = asyncio.get_running_loop().create_task(self._prepare(item))

    @property
    def cell_runs(self) -> bool:
        """Whether the current item is a cell that has begun."""
        return isinstance(self.queue.current, Cell) and not self.preparing

    def interrupt_cell(self) -> bool:
        return self.repl.interrupt()

    def _ready(self) -> bool:
        """Whether all that a cell needs besides a REPL is there."""
        return (
            (self.tools is None or self.tools.ready)
            and (self.network is None or self.network.ready)
            and not self._outdated
            and not self.folders.needed
            and not (self.points is not None and self.points.due)
        )

    def _start(self, item: Cell | Turn) -> None:
        if isinstance(item, Turn):
            item.begin()
            return
        carried = self.identity.carried
        carried.cells += 1
        if self.keeping is not None:
            self.keeping.cell_begun(carried.cells, item.code)
        carried.changed()
        if self.tools is not None:
            self.tools.begin_cell(item, self.repl)
        self.repl.run(item, carried.cells)
        self.recovery.tell(item)
        if item.interrupted:
            self.repl.interrupt()

    def _on_cell_end(self, cell: Cell, ending: Ending) -> None:
        if self.tools is not None:
            self.tools.end_cell()
        if ending.state == "lost":
            self.recovery.cell_lost(cell, ending)
        else:
            self.collect(cell, ending)

    def collect(self, cell: Cell, ending: Ending) -> None:
        """Deliver the outcome of a cell when its output is complete."""
        # Nearly always at once; a large output has to reach its file first.
        cell.sink.collect(lambda collected: self._deliver(cell, ending, collected))

    def _deliver(self, cell: Cell, ending: Ending, collected: Collected) -> None:
        if cell is not self.queue.current:
            return  # the sandbox was closed while the output was written to its file
        carried = self.identity.carried
        outcome = outcome_of(cell, ending, collected, carried)
        # The result of the first cell in a fresh REPL says that the namespace was lost. If its caller has disconnected,
        # the next result says it, unless the result of the cell in which it happened has said so already.
        if not cell.abandoned or carried.loss_told:
            carried.restarted = carried.loss_told = False
        if not cell.abandoned:
            carried.loss_told = ending.state == "lost"
            cell.on_outcome(outcome)
        if self.points is not None:
            self.points.cell_ended(cell, ending)
        self.changed()
        self.replay.exited(ending.exit_code, cell.execution)
        self.queue.next()

    async def _prepare(self, item: Cell | Turn) -> None:
        """All that a cell or turn needs, then itself. The sandbox may begin to close at each await."""
        error: RametError | None = None
        try:
            if self.sleep.asleep:
                await self.sleep.awake()
            if not self.repl.alive and self._closing is None:
                await self.recovery.recover()
            if self.tools is not None and not self.tools.ready and self._closing is None:
                await self.tools.open()
            if isinstance(item, Cell) and self._closing is None:
                if self._outdated:
                    await self.adjust({}, None)  # while its network is being opened
                if self.network is not None:
                    await self.network.opened()
                await self.folders.now()
                self.folders.go_on()
                if self.points is not None and self.points.due and self._closing is None:
                    await self.points.before_cell()
        except RametError as cause:
            error = cause
        except Exception as cause:
            error = SandboxLost(f"the REPL of sandbox {self.id} could not be started again: {cause}")
        self._preparing = None
        if self._closing is not None or item is not self.queue.current:
            return  # the item was given up with all others
        if item.abandoned:
            self.queue.next()
        elif error is not None:
            item.on_error(error)
            self.queue.next()
        elif not self.repl.alive:
            item.on_error(SandboxLost(f"the REPL of sandbox {self.id} ended as soon as it was started again"))
            self.queue.next()
        else:
            self._start(item)

    def start_repl_again(self) -> None:
        if self._closing is not None:  # it began to close while the template was thawed
            raise SandboxClosed(f"cannot start the REPL again: {self.identity.ended}")
        self.repl = Repl(self.body, self._settings, self._background, self.replay, self._on_cell_end)
        self.past.add_restart(self.attempts)
        carried = self.identity.carried
        carried.restarted = True
        carried.variables, carried.commands = {}, None
        carried.changed()
        self._outdated = self._variables() != carried.variables

    def give_up_repl(self) -> None:
        self.repl.detach()

    # Another body

    def become(
        self, body: Body, spec: SandboxSpec, carried: CarriedState, fresh: bool = False, woken: bool = False
    ) -> RetiredBody:
        """Go on with a body that was thawed from a sandbox, or a ``fresh`` one. Only while no cell runs.

        ``woken``: the body is what the sandbox was when it fell asleep.
        """
        background = self._background if woken else Tail(self._settings.background_bytes)
        # First, because it can fail: then the sandbox keeps the body that it has, and the caller closes the new one.
        repl = Repl(body, self._settings, background, self.replay, self._on_cell_end, fresh)
        retired = self._retire()
        self.body, self.repl, self._background = body, repl, background
        self.identity.adopt(spec, carried)
        body.owner = self.owner
        self._file_calls = set()
        self._renew_tools()
        self._renew_network(None)
        if not woken:
            self.changed()
        return retired

    def fall_asleep(self) -> RetiredBody:
        """Give up the body; its last state is on disk. Only in a turn. ``become`` ends it."""
        retired = self._retire()
        self.body = AbsentBody(self.id, self.owner)
        self._file_calls = set()
        self.tools = None  # known in the carried state
        if self.network is not None:
            self.network.suspend()
        self.exposures.suspend(self.sleep.wake_soon)
        self.sleep.asleep = True
        return retired

    async def files_unused(self, seconds: float) -> bool:
        """Wait until no call uses its files, at most this long. Returns whether none does."""
        if self._file_calls:
            await asyncio.wait(self._file_calls, timeout=seconds)
        return not self._file_calls

    def take_over(self, winner: Sandbox) -> RetiredBody:
        """Go on with all that the winner is; the winner is no more. Only in a turn of both."""
        retired = self._retire(winner._terminals)
        self.body = winner.body
        self.identity.adopt(winner.spec, winner.carried)
        self._background = winner._background
        self.repl = winner.repl
        self.repl.on_cell_end = self._on_cell_end
        self.repl.replay = self.replay
        self._file_calls = winner._file_calls
        self._renew_tools()
        self._renew_network(winner)
        self.replay.append(winner.replay)
        self._take_past(winner)
        self.changed(f"what it took over from {winner.id}")
        winner._dissolve(self)
        return retired

    def _take_past(self, winner: Sandbox) -> None:
        """Go on with the past of a winner, as far back as this sandbox remembers any."""
        past = self.past.joined_by(winner.past)
        for step in past.steps:
            step.attempts = self.attempts  # the log of its network goes with the id
        for state in (*self.past.take_states(), *winner.past.take_states()):
            self.past.release(state)
        past.release, past.unload = self.past.release, self.past.unload
        self.past = past
        if self.points is not None:
            self.points.moved()

    def _renew_tools(self) -> None:
        """The tool socket is in the network of one body."""
        tools = self.identity.carried.tools
        self.tools = None if tools is None else ToolService(self.body, self._settings, tools)

    def _renew_network(self, winner: Sandbox | None) -> None:
        """Its rules and secrets go with the id, its sockets with the body: those of a winner are in there already."""
        given_up = winner.network if winner is not None else None
        if winner is not None:
            winner.network = None
            winner.exposures.close()
        carried = self.identity.carried
        if self.network is not None:
            self.network.recognise(carried.secrets)
            self.network.renew(self.body, given_up, take_proxy_sockets(self.body))
        elif given_up is not None:
            given_up.close()
        self.exposures.renew(self.body)
        self._outdated = self._variables() != carried.variables

    def _retire(self, more: Terminals | None = None) -> RetiredBody:
        self.repl.detach()
        if self.tools is not None:
            self.tools.close()
        terminals = [some for some in (self._terminals, more) if some is not None]
        self._terminals = None
        return RetiredBody(self.body, terminals, self._file_calls, self._settings.retire_seconds)

    def _dissolve(self, into: Sandbox) -> None:
        """The end of a winner: its body, REPL and results are the other sandbox's."""
        self.identity.ended = merged_message(self.id, into.id)
        self.clock.stop()
        self.folders.stop()
        self._closing = asyncio.get_running_loop().create_future()
        self._closing.set_result(None)
        self.queue.closed = True
        self._stop_points()
        self.queue.fail_all(self.identity.ended)
        self.queue.current = None
        if self.tools is not None:
            self.tools.close()
        into.executions.adopt(self.executions)

    # The end

    def _stop_points(self) -> None:
        if self.points is not None:
            self.points.stop()
            self.on_points_stopped()

    async def close(self, why: str | None = None) -> None:
        """End everything. Cells that run or wait are cancelled."""
        # One task for all callers, and shielded: a caller that is cancelled must not stop it half-way.
        if self._closing is None:
            self.identity.ended = why or f"sandbox {self.id} was closed"
            self.queue.closed = True
            self._closing = asyncio.ensure_future(self._close())
            if (when_closed := self.when_closed) is not None:
                self._closing.add_done_callback(lambda _: when_closed())
        await asyncio.shield(self._closing)

    def wind_down(self, why: str) -> None:
        """It ends soon, after one more turn. Cells are cancelled as when it closes; a running one is interrupted.

        Only for one that the registry does not find any more: a cell that came now would never get an answer.
        """
        self.identity.ended = why
        self._stop_points()
        self.clock.stop()
        self.queue.fail_all(why)
        if isinstance(current := self.queue.current, Cell):
            current.abandoned = True
            current.sink.abandon()
            self.repl.interrupt()

    async def _close(self) -> None:
        self._stop_points()
        self.clock.stop()
        self.folders.stop()
        current = self.queue.current
        if isinstance(current, Cell):
            current.sink.discard()
        self.queue.fail_all(self.identity.ended)
        self.queue.current = None
        self.executions.clear()
        self.repl.detach()
        if self.tools is not None:
            self.tools.close()
        if self.network is not None:
            self.network.close()
        self.exposures.close()
        if self._terminals is not None:
            await self._terminals.close()
        if isinstance(current, Turn):
            await current.released.wait()  # a fork or a restore may be using the body
        if self._preparing is not None:
            await asyncio.wait([self._preparing])  # a recovery may be replacing the processes in the pod
        await self.recovery.settled()
        await self.sleep.settled()
        # Before the body: the frozen processes are in the groups of its pod.
        await self.past.close()
        await self.body.close()


def first_carried(body: Body) -> CarriedState:
    """Of a REPL that was thawed from a template; one that waited in the pool may have variables already."""
    prepared = body.prepared
    if isinstance(prepared, PreparedNetwork):
        return CarriedState(variables=prepared.variables, commands=prepared.commands)
    return CarriedState()


def merged_message(sandbox_id: str, into: str) -> str:
    return f"sandbox {sandbox_id} was merged; its state continues in sandbox {into}"
