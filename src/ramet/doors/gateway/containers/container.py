"""A container: a sandbox that requests find again by its id, with its uploads and the cells that ran in it."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from ramet import AsyncSandbox, History, Undone
from ramet.doors.gateway.containers.kept_sandbox import LOST, KeptSandbox
from ramet.doors.gateway.containers.records import CellRecords
from ramet.doors.gateway.containers.refusals import ContainerBusy, ContainerExpired
from ramet.doors.gateway.containers.resumption import notice_of
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.containers.store import CELL_IDS_KEPT, ContainerStore, StoredContainer
from ramet.doors.gateway.errors import ApiError, invalid
from ramet.doors.gateway.files.store import FileStore
from ramet.doors.gateway.running.blocks import EDITOR
from ramet.doors.gateway.running.cell_run import CellRun
from ramet.doors.gateway.running.client_tools import ClientTools
from ramet.doors.gateway.running.execution import ExecutionPlace, carry_out
from ramet.doors.gateway.running.outcomes import CellRequest, ClientTool, Finished
from ramet.doors.gateway.running.outputs import Outputs
from ramet.doors.gateway.running.uploads import Uploads
from ramet.errors import (
    FileError,
    InvalidArgument,
    LimitReached,
    PointUnknown,
    RametError,
    SandboxClosed,
    SandboxLost,
)

# Runs whose outcome a client may still ask for again.
_RUNS_KEPT = 8
# The time of the last use is written this seldom, if nothing else is.
_USED_SECONDS = 30.0

Clock = Callable[[], float]


def new_id() -> str:
    return f"container_{secrets.token_hex(12)}"


class Container:
    """Owns its sandbox and its runs. Cells run one at a time, in order of arrival."""

    def __init__(
        self,
        owner: str,
        settings: ContainerSettings,
        files: FileStore,
        store: ContainerStore,
        clock: Clock,
        *,
        stored: StoredContainer | None = None,
        kept: KeptSandbox | None = None,
    ) -> None:
        """``stored``: what is known of it, by an earlier gateway or by the container that it is a copy of.

        ``kept``: its sandbox, if it has one in the engine.
        """
        now = clock()
        if stored is None:
            stored = StoredContainer(new_id(), owner, now, now)
        self.id = stored.id
        self.owner = owner
        self.forked_from = stored.forked_from
        self.created_seconds = stored.created_seconds
        self.used_seconds = self._stored_used_seconds = stored.used_seconds
        self.cells: CellRecords = CellRecords(stored.cells)
        self.closed: str | None = None  # the reason
        self._settings = settings
        self._files = files
        self._store = store
        self._clock = clock
        self._users = 0
        self._notice = stored.notice  # the first lines of the next cell's stderr
        self._cell_ids: dict[str, None] = dict.fromkeys(stored.cell_ids)  # oldest first
        self._runs: deque[CellRun] = deque(maxlen=_RUNS_KEPT)
        self._uploads: Uploads = Uploads(stored.uploads)
        self._outputs: Outputs = Outputs(stored.outputs)
        # A sandbox that others have used may have tools whose handler is not ours.
        self._client_tools = ClientTools(self._called, fresh=kept is None and stored.sandbox_id is None)
        self._kept = kept or KeptSandbox(settings, self._outputs.folder, kept_id=stored.sandbox_id)
        self._stored_sandbox_id = self._kept.kept_id
        self._lock = asyncio.Lock()  # or waking, freezing, copying and closing would race for the sandbox

    def __repr__(self) -> str:
        return f"<Container {self.id} {self.state}>"

    @property
    def state(self) -> str:
        """One of: new, idle, running, waiting (for its client), frozen, closed."""
        run = self._run
        if self.closed is not None:
            return "closed"
        if run is not None and not run.ended:
            return "waiting" if run.waiting else "running"
        return self._kept.state

    @property
    def expires_at(self) -> datetime:
        """Until when it certainly exists in this state, if it is not used again. Each use moves it."""
        used = self._clock() if self.busy else self.used_seconds
        return datetime.fromtimestamp(used + self._settings.container_idle_seconds, UTC)

    @property
    def busy(self) -> bool:
        """Whether a request uses it, or code runs or waits in it."""
        return self.in_request or not self._quiet

    @property
    def in_request(self) -> bool:
        return self._users > 0

    @property
    def pending(self) -> CellRun | None:
        """The run that has not ended, or whose outcome no request has read: a later request continues with it."""
        run = self._run
        return None if run is None or run.told else run

    def run_of(self, tool_use_ids: Collection[str]) -> CellRun | None:
        """The run whose code made these calls, ended or not, if it is one of the last."""
        return next((run for run in reversed(self._runs) if run.knows(tool_use_ids)), None)

    def begun_here(self, tool_use_ids: Sequence[str]) -> list[str]:
        """The calls that are among the last ones of this container. Its forks do not know them."""
        return [one for one in tool_use_ids if one in self._cell_ids]

    def deserted_run(self, idle_seconds: float) -> CellRun | None:
        """A run that no request has asked about for longer than any of its calls may wait."""
        run, calls = self._run, self._settings.calls
        if run is None or run.ended or self.in_request or calls.call_seconds is None:
            return None
        patience = calls.call_seconds + calls.cell_seconds + self._settings.container_idle_seconds
        return run if idle_seconds > patience else None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """For a request: it does not expire during the block, and its lifetime starts anew after it."""
        with self.held():
            try:
                yield
            finally:
                self.touch()

    @contextmanager
    def held(self) -> Iterator[None]:
        """During the block it is neither frozen nor forgotten."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    def touch(self) -> None:
        self.used_seconds = self._clock()
        if abs(self.used_seconds - self._stored_used_seconds) >= _USED_SECONDS:
            self._stored_used_seconds = self.used_seconds
            self._store.used(self.id, self.used_seconds)

    def stored(self) -> StoredContainer:
        """Its record: what the gateway has to know besides the state of its sandbox."""
        return StoredContainer(
            id=self.id,
            owner=self.owner,
            created_seconds=self.created_seconds,
            used_seconds=self.used_seconds,
            sandbox_id=self._kept.kept_id,
            forked_from=self.forked_from,
            outputs=self._outputs.number,
            notice=self._notice,
            cell_ids=tuple(self._cell_ids),
            cells=tuple(self.cells),
            uploads=self._uploads.paths,
        )

    def note(self, notice: str) -> None:
        """Have the first lines of the next cell's stderr say something."""
        self._notice += notice
        self._store.noted(self.id, self._notice)

    async def upload(self, file_ids: Sequence[str]) -> list[str]:
        """Copy the owner's files into $INPUT_DIR, unless they are there. Returns their paths. Raises ApiError."""
        missing = self._uploads.missing(file_ids)
        for file_id in missing:
            self._files.get(self.owner, file_id)  # check all of them before the first is copied
        if missing or self._uploads.unsure:
            with self.in_use(), self._refusing("files could not be copied into it"):
                async with self._lock:
                    sandbox = await self._awake()
                    await self._uploads.look(sandbox)
                    # Looked up again: another request may have copied them while this one waited for the lock.
                    for file_id in self._uploads.missing(file_ids):
                        await self._uploads.put(sandbox, self._files, self.owner, file_id)
                    self._store.uploaded(self.id, self._uploads.paths)
        return [self._uploads.path(file_id) for file_id in file_ids]

    async def start(
        self, request: CellRequest, tools: Sequence[ClientTool] = (), *, tools_anew: bool = False
    ) -> CellRun:
        """Start a cell. Waits while another runs. Raises ContainerBusy if that one waits for its client.

        ``tools`` become functions in Python and commands in bash. ``tools_anew``: see ``ClientTools.give``.
        """
        with self.in_use():
            run = await self._claim(request, tools if request.name != EDITOR else ())
            try:
                async with self._lock:
                    sandbox = await self._with_tools(run, tools_anew)
                    run.begin(carry_out(run, self._place(sandbox)), sandbox.interrupt)
            except LimitReached as error:
                run.finish(run.fail("too_many_requests", error.message))
            except LOST as error:
                if (expired := self._lost(error)) is not None:
                    self._drop(run)
                    raise expired from error
                run.finish(run.fail("unavailable", error.message))
            except RametError as error:
                run.finish(run.fail("unavailable", error.message))
            except BaseException:
                self._drop(run)
                raise
            return run

    async def fork(self, n: int) -> list[Container]:
        """Copy it between two cells. Each copy has an id of its own. Raises ContainerBusy."""
        with self.in_use(), self._refusing("it could not be copied"):
            async with self._lock:
                self._check_quiet()
                await self._awake()
                return [self._copy(kept) for kept in await self._kept.copies(n)]

    def _copy(self, kept: KeptSandbox) -> Container:
        now = self._clock()
        known = replace(
            self.stored(),
            id=new_id(),
            created_seconds=now,
            used_seconds=now,
            sandbox_id=kept.kept_id,
            forked_from=self.id,
            cell_ids=(),
        )
        copy = Container(self.owner, self._settings, self._files, self._store, self._clock, stored=known, kept=kept)
        copy._outputs = self._outputs.copy()
        return copy

    async def history(self) -> History:
        """The calls that ran in it, and which states are still kept. Raises ContainerBusy."""
        with self.held(), self._refusing("it could not be read"):
            async with self._lock:
                self._check_quiet()
                return await (await self._awake()).history()

    async def undo(self, n: int) -> Undone:
        """Go back to the state before the last calls. Raises ContainerBusy, or ApiError if that state is not kept."""
        with self.in_use(), self._refusing("nothing was undone in it"):
            async with self._lock:
                self._check_quiet()
                try:
                    undone = await (await self._awake()).undo(n)
                except (InvalidArgument, PointUnknown) as error:
                    raise invalid(error.message) from error
                self._state_changed()
                return undone

    def _check_quiet(self) -> None:
        if not self._quiet:
            raise ContainerBusy(self.id, [call.id for call in self._run.calls] if self._run else [])

    async def sandbox_between_cells(self) -> AsyncSandbox | None:
        """The sandbox, for reading. None while code runs or waits."""
        with self._refusing("it could not be read"):
            async with self._lock:
                return await self._awake() if self._quiet else None

    async def freeze(self) -> None:
        """Put the sandbox to sleep, unless it is in use."""
        async with self._lock:
            # Checked under the lock: a request may have come, or `close`, since the registry chose this container.
            if not self.busy and self.closed is None:
                await self._rest()

    async def leave(self, why: str) -> None:
        """The gateway ends: put the sandbox to sleep, in the state after the cell that is interrupted for this."""
        self.closed = why
        if (run := self._run) is not None:
            await run.abandon()
        self._store.used(self.id, self.used_seconds)
        async with self._lock:
            try:
                await self._kept.leave()
            finally:
                self._sandbox_changed()

    async def close(self, why: str) -> None:
        """End it, and everything that runs in it, and remove what is on disk of it. May be called again."""
        # Set before the first await, so that no new run begins while the current one is being abandoned.
        if self.closed is None:
            self.closed = why
        if (run := self._run) is not None:
            await run.abandon()
        async with self._lock:
            await self._kept.close()

    def let_go(self) -> bool:
        """Note that the engine does not have the sandbox any more. Returns whether its state may be on disk."""
        self._client_tools.forget()
        return self._kept.let_go()

    async def _rest(self) -> None:
        try:
            rested = await self._kept.rest()
        finally:
            self._sandbox_changed()
        if rested:
            self._client_tools.forget()
            # Clients that have read an outcome have had time to ask for it again.
            self._runs = deque((run for run in self._runs if not run.told), maxlen=_RUNS_KEPT)

    @property
    def _run(self) -> CellRun | None:
        return self._runs[-1] if self._runs else None

    @property
    def _quiet(self) -> bool:
        return self._run is None or self._run.ended

    async def _claim(self, request: CellRequest, tools: Sequence[ClientTool]) -> CellRun:
        """Append a new run, once the one before has ended. Raises ContainerBusy or ContainerExpired."""
        # A loop: several requests may have waited for the same run, and the first of them has begun another.
        while (before := self._run) is not None and not before.ended:
            await before.reached()
            if before.waiting:
                raise ContainerBusy(self.id, [call.id for call in before.calls])
        if self.closed is not None:
            raise ContainerExpired(self.id, self.closed)
        # No await between the checks and this: the run in the list is what keeps the next request out.
        run = CellRun(request, tools, self._settings.calls)
        self._runs.append(run)
        self._cell_ids[request.tool_use_id] = None
        if len(self._cell_ids) > CELL_IDS_KEPT:
            del self._cell_ids[next(iter(self._cell_ids))]
        self._store.cell_begun(self.id, request.tool_use_id)
        return run

    def _drop(self, run: CellRun) -> None:
        """End a run that never began."""
        run.finish(run.fail("unavailable", "it was cancelled before it began"))
        run.told = True

    async def _with_tools(self, run: CellRun, anew: bool) -> AsyncSandbox:
        """The sandbox, with the tools of a run. The caller holds the lock."""
        try:
            sandbox = await self._awake()
            await self._give_tools(sandbox, run, anew)
        except LOST:
            # The engine ended since the last call. Nothing has run yet: if the state is on disk, it goes on from there.
            if self.closed is not None or not self.let_go():
                raise
            sandbox = await self._awake()
            await self._give_tools(sandbox, run, anew)
        return sandbox

    async def _awake(self) -> AsyncSandbox:
        """The sandbox, woken, resumed or created if needed. The caller holds the lock."""
        if self.closed is not None:
            raise ContainerExpired(self.id, self.closed)
        frozen = self._kept.state == "frozen"
        try:
            sandbox = await self._kept.awake()
        except (SandboxClosed, SandboxLost) as error:
            if frozen:  # else a new sandbox could not be created: nothing is lost yet
                self.closed = f"it was lost ({error.message})"
                raise ContainerExpired(self.id, self.closed) from error
            raise
        finally:
            self._sandbox_changed()
        if self._kept.resumed is not None:
            notice = notice_of(self._kept.resumed)
            self._kept.resumed = None
            self._state_changed()
            self._outputs.next_folder()
            if notice:
                self.note(notice)
        return sandbox

    def _sandbox_changed(self) -> None:
        """Write down which sandbox it has on disk, if that is another one than before."""
        if self._kept.kept_id != self._stored_sandbox_id:
            self._stored_sandbox_id = self._kept.kept_id
            self._store.has_sandbox(self.id, self._stored_sandbox_id)

    def _state_changed(self) -> None:
        """Note that the sandbox went back to an earlier state: what we put into it may be missing."""
        self._outputs.repl_lost()
        self._uploads.unsure = True
        self._client_tools.forget()

    async def _give_tools(self, sandbox: AsyncSandbox, run: CellRun, anew: bool) -> None:
        if run.request.name != EDITOR:
            try:
                await self._client_tools.give(sandbox, run.tools, anew=anew)
            except InvalidArgument as error:
                raise invalid(f"tools: {error.message}") from error

    async def _called(self, tool: str, arguments: dict[str, object]) -> str:
        """Handle a tool call of the code in this container."""
        run = self._run
        if run is None:
            raise RuntimeError("a tool was called, and nothing runs")
        return await run.called(tool, arguments)

    def _place(self, sandbox: AsyncSandbox) -> ExecutionPlace:
        return ExecutionPlace(
            container=self.id,
            owner=self.owner,
            sandbox=sandbox,
            files=self._files,
            outputs=self._outputs,
            settings=self._settings,
            carried_out=self._carried_out,
            lost=self._lost,
            went_back=self._state_changed,
            notice=self._take_notice,
        )

    def _carried_out(self, run: CellRun, duration_seconds: float, finished: Finished) -> None:
        self.used_seconds = self._stored_used_seconds = self._clock()
        record = self.cells.add(run.request, self.used_seconds, duration_seconds, finished)
        self._store.cell_ended(self.id, record, self._outputs.number, self.used_seconds)

    def _take_notice(self) -> str:
        notice, self._notice = self._notice, ""
        if notice:
            self._store.noted(self.id, "")
        return notice

    def _lost(self, error: RametError) -> ContainerExpired | None:
        """The sandbox is gone. Returns None if its state may be on disk: the next call goes on with that."""
        if self.closed is None:
            if self.let_go():
                return None
            self.closed = f"it was lost ({error.message})"
        return ContainerExpired(self.id, self.closed)

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Map errors of the sandbox to errors of the API."""
        try:
            yield
        except LOST as error:
            raise self._lost(error) or ApiError(503, f"container {self.id}: {what}: {error.message}") from error
        except LimitReached as error:
            raise ApiError(429, f"container {self.id}: {what}: {error.message}") from error
        except FileError as error:
            raise invalid(f"container {self.id}: {what}: {error.message}") from error
        except RametError as error:
            raise ApiError(500, f"container {self.id}: {what}: {error.message}") from error
