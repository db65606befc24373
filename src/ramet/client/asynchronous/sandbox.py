"""AsyncSandbox: the face of Ramet for programs on an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from ramet.client import folders
from ramet.client.arguments import Mounts, Template, check_id, sandbox_spec, server_for
from ramet.client.asynchronous.files import AsyncFiles
from ramet.client.asynchronous.forks import AsyncForks, AsyncSnapshot
from ramet.client.asynchronous.networks import AsyncExposed, AsyncSandboxNetwork
from ramet.client.asynchronous.terminals import AsyncTerminal
from ramet.client.drivers import asynchronous
from ramet.client.drivers.async_bases import AsyncSandboxBase
from ramet.client.folders import DOWNLOAD_BYTES_AT_MOST, Copied
from ramet.client.handle import HandleOwner, SandboxHandle, SnapshotHandle, closing_after
from ramet.client.network import NetworkArgument, Secrets, network_spec, secret_specs
from ramet.client.operations import cells, forks, sandboxes, terminals, values
from ramet.client.operations import history as history_operations
from ramet.client.operations import network as network_operations
from ramet.client.operations.cells import OnDisconnect
from ramet.client.operations.forks import ForkedChildren
from ramet.client.operations.terminals import TerminalHandle
from ramet.client.tools.tool import AnyTool, toolset
from ramet.client.usual_names import knows_its_arguments, no_such_member, not_picklable
from ramet.errors import EngineClosed, EngineLost, SandboxClosed
from ramet.protocol.calls import CHUNK_BYTES
from ramet.protocol.checks import Language
from ramet.protocol.requests.operations import ForkOptions, RewindOptions, TakeOptions, UndoOptions
from ramet.protocol.values.forks import Diff, ForkInfo
from ramet.protocol.values.history import History, Point, Undone
from ramet.protocol.values.listing import SandboxRow
from ramet.protocol.values.replays import ReplayEvent
from ramet.protocol.values.results import Event, Result, SandboxInfo
from ramet.protocol.values.takes import Taken
from ramet.protocol.values.terminals import TerminalInfo

if TYPE_CHECKING:
    from ramet.client.blocking.forks import Snapshot
    from ramet.client.blocking.sandbox import Sandbox
    from ramet.client.value_assignment import AssignmentStep


class AsyncSandbox(AsyncSandboxBase):
    """A running Python REPL with its own memory, files, processes and walls, for programs on an event loop.

        async with AsyncSandbox() as sandbox:
            print(await sandbox.run_code("6 * 7"))

    Created by ``async with AsyncSandbox(...)`` or ``await AsyncSandbox.create(...)``. Cells run one at a time, in the
    order in which they were asked for; everything else at once. A task that is cancelled while it waits for a cell
    interrupts the cell.

    Arguments:
        template: "default", "python-datasci" (numpy, pandas and matplotlib are imported), a Template of your own, or a
            Snapshot to start from.
        python: Path of another interpreter, for instance of a virtual environment. Default: the one that runs Ramet.
        env: Environment variables, set on top of the sandbox's own.
        cwd: Folder in which the first cell starts. Default: /root.
        mounts: Folders of this machine to show in the sandbox, ``{"/data": "./data"}``; read-only unless given as
            ``Mount(path, writable=True)``.
        memory_mib: Memory limit in MiB, from 64 to what this machine has. Default: 4096, or half of the machine's.
        pids: Limit on processes and threads together. Default: 256.
        cpus: Limit on processors, also a fraction. Default: 2.
        disk_mib: Limit on the sandbox's own files in MiB. Default: 4096.
        timeout_seconds: Seconds after which the sandbox ends by itself. Default: never; at a server, 30 minutes.
        idle_timeout_seconds: Seconds without use after which it ends by itself. Default: never; at a server, 5 minutes.
        network: What code may reach: "open", a list of hosts, ``["data.example", "*.example:443"]``, or a Network.
            Default: nothing but the sandbox itself.
        secrets: ``{"NAME": Secret(value, hosts=[...])}``: requests to these hosts carry the value, and code sees only a
            placeholder.
        history: How many of its past states are kept for ``undo`` and ``rewind``; False keeps none. Default: as many as
            cost next to nothing.
        recover: What a sandbox whose Python has died goes on with: "point", its last kept state, or "fresh", an empty
            Python and its files as they are.
        persistent: Whether it survives the end of this program and of the machine: ``Sandbox.resume(id)`` has it again.
        checkpoint_seconds: How long after a cell the state of a persistent sandbox is written to disk, at most.
            Default: 10.
        hibernate_after_seconds: Seconds without use after which it goes to sleep on disk; the next call wakes it.
            Default: never.
        on_idle: What happens after ``idle_timeout_seconds``: "end", or "hibernate". Default: "end", or what the server
            says.
        tools: Functions of this program that code in the sandbox can call.
        url: URL of a server (``ramet serve``) to make the sandbox at. Default: RAMET_URL, else in this process.
        api_key: Key for that server. Default: RAMET_API_KEY.

    Attributes:
        id: Name of the sandbox, unique in its engine.
        files: Its files: read, write, list and more; an AsyncFiles.
        network: Its network rules and the log of its connections; an AsyncSandboxNetwork.
        fork_info: A ForkInfo with the cost of the fork if it is a child of one, else None.
        tools: Names of the tools whose calls this object answers.
        missing_cells: After ``resume``, the cells that are not part of its state; a tuple of MissingCell.

    Raises InvalidArgument for an argument that is not allowed, before anything is started; HostNotCapable where this
    machine cannot build the walls; TemplateFailed if the interpreter does not start; LimitReached if there is no
    room for another sandbox. Every method raises SandboxClosed once the sandbox has ended, EngineLost or EngineClosed
    if the engine has, and for a sandbox at a server Unreachable, Unauthorized, or OutcomeUnknown if the connection
    broke. A cell that fails is a Result, never an exception.
    """

    @knows_its_arguments
    def __init__(
        self,
        template: str | Template | Snapshot | AsyncSnapshot = "default",
        *,
        python: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        mounts: Mounts | None = None,
        memory_mib: int | None = None,
        pids: int | None = None,
        cpus: float | None = None,
        disk_mib: int | None = None,
        timeout_seconds: float | None = None,
        idle_timeout_seconds: float | None = None,
        network: NetworkArgument | None = None,
        secrets: Secrets | None = None,
        history: int | None = None,
        recover: Literal["point", "fresh"] | None = None,
        persistent: bool = False,
        checkpoint_seconds: float | None = None,
        hibernate_after_seconds: float | None = None,
        on_idle: Literal["end", "hibernate"] | None = None,
        tools: Iterable[AnyTool] | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        given = toolset(tools)
        server = server_for(template, url, api_key)
        spec = sandbox_spec(
            template,
            server,
            python=python,
            env=env,
            cwd=cwd,
            mounts=mounts,
            memory_mib=memory_mib,
            pids=pids,
            cpus=cpus,
            disk_mib=disk_mib,
            timeout_seconds=timeout_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            network=network,
            secrets=secrets,
            history=history,
            recover=recover,
            persistent=persistent,
            checkpoint_seconds=checkpoint_seconds,
            hibernate_after_seconds=hibernate_after_seconds,
            on_idle=on_idle,
        )
        self._begin(template, server, spec, given)

    @classmethod
    @knows_its_arguments
    async def create(
        cls,
        template: str | Template | Snapshot | AsyncSnapshot = "default",
        *,
        python: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        mounts: Mounts | None = None,
        memory_mib: int | None = None,
        pids: int | None = None,
        cpus: float | None = None,
        disk_mib: int | None = None,
        timeout_seconds: float | None = None,
        idle_timeout_seconds: float | None = None,
        network: NetworkArgument | None = None,
        secrets: Secrets | None = None,
        history: int | None = None,
        recover: Literal["point", "fresh"] | None = None,
        persistent: bool = False,
        checkpoint_seconds: float | None = None,
        hibernate_after_seconds: float | None = None,
        on_idle: Literal["end", "hibernate"] | None = None,
        tools: Iterable[AnyTool] | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> AsyncSandbox:
        """Create a sandbox, ready for its first cell. Arguments and errors are those of the class."""
        sandbox = cls(
            template,
            python=python,
            env=env,
            cwd=cwd,
            mounts=mounts,
            memory_mib=memory_mib,
            pids=pids,
            cpus=cpus,
            disk_mib=disk_mib,
            timeout_seconds=timeout_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            network=network,
            secrets=secrets,
            history=history,
            recover=recover,
            persistent=persistent,
            checkpoint_seconds=checkpoint_seconds,
            hibernate_after_seconds=hibernate_after_seconds,
            on_idle=on_idle,
            tools=tools,
            url=url,
            api_key=api_key,
        )
        return await sandbox.__aenter__()

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        *,
        tools: Iterable[AnyTool] | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> AsyncSandbox:
        """Connect to a sandbox that exists, by its id. Unlike others, this one may be forgotten: the sandbox goes on.

        With ``tools`` the sandbox gets these instead of those it has. ``url`` and ``api_key`` are as for the class.
        Raises SandboxClosed if there is no sandbox of this id, or no longer; InvalidArgument for an argument that is
        not allowed.
        """
        check_id(sandbox_id)
        given = toolset(tools)
        engine = await asynchronous.engine_at(url, api_key)
        await asynchronous.perform(engine, sandboxes.info(sandbox_id))
        handle = SandboxHandle(engine, sandbox_id, owned=False)
        if tools is not None:
            await asynchronous.give_tools(handle, given)
        return cls._adopted(handle)

    @classmethod
    async def list_all(cls, *, url: str | None = None, api_key: str | None = None) -> list[SandboxRow]:
        """All sandboxes of this key at a server, or of this process, the oldest first.

        Raises Unreachable or Unauthorized for a server that does not answer or does not know the key.
        """
        engine = await asynchronous.engine_at(url, api_key)
        return await asynchronous.perform(engine, sandboxes.list_sandboxes())

    @classmethod
    async def resume(
        cls,
        sandbox_id: str,
        *,
        network: NetworkArgument | None = None,
        secrets: Secrets | None = None,
        tools: Iterable[AnyTool] | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> AsyncSandbox:
        """Go on with a persistent sandbox of an earlier program, under its id, in the last state that is on disk.

        ``missing_cells`` names the cells that are not part of that state, and the next result says so, too. Network
        rules are those it had unless you give others; secrets and tools are given anew. One that is alive in this
        engine is only connected to. Raises SandboxClosed if nothing is kept under this id, RametError if another
        program has it or its image cannot be used here, InvalidArgument for an argument that is not allowed.
        """
        check_id(sandbox_id)
        given = toolset(tools)
        rules = network_spec(network)
        values = secret_specs(secrets, rules, {})
        engine = await asynchronous.engine_at(url, api_key)
        resumed = await asynchronous.perform(engine, sandboxes.resume(sandbox_id, rules, values))
        handle = SandboxHandle(engine, resumed.id)
        if tools is not None:
            await asynchronous.give_tools(handle, given)
        made = cls._adopted(handle)
        made.missing_cells = resumed.missing
        return made

    @classmethod
    async def kept(cls, *, url: str | None = None, api_key: str | None = None) -> list[SandboxRow]:
        """The sandboxes on disk that ``resume`` can have again: those that no program has now, the oldest first."""
        engine = await asynchronous.engine_at(url, api_key)
        return await asynchronous.perform(engine, sandboxes.kept())

    @classmethod
    async def discard(cls, sandbox_id: str, *, url: str | None = None, api_key: str | None = None) -> None:
        """Remove what is kept of a persistent sandbox. One that is alive ends. Does nothing if there is nothing.

        Raises RametError if another program has the sandbox.
        """
        check_id(sandbox_id)
        engine = await asynchronous.engine_at(url, api_key)
        await asynchronous.perform(engine, sandboxes.discard(sandbox_id))

    def _attach(self, owner: HandleOwner) -> None:
        self.files = AsyncFiles(owner)
        self.network = AsyncSandboxNetwork(owner)

    def __repr__(self) -> str:
        if self._handle is None:
            return "<AsyncSandbox not created>"
        return f"<AsyncSandbox {self.id} {self._handle.state}>"

    async def run_code(
        self,
        code: str,
        language: Language = "python",
        timeout: float | None = None,
        *,
        on_disconnect: OnDisconnect = "keep",
    ) -> Result:
        """Run a cell, wait for its end, and return its Result: output, value, error.

        ``language`` is "python" or "bash". After ``timeout`` seconds the cell is interrupted; None is no limit. If the
        connection to a server breaks, the cell goes on (``on_disconnect="keep"``) or is interrupted ("interrupt").
        Code that fails is a Result with ``ok`` False. Raises InvalidArgument, LimitReached if 1000 cells wait already,
        ExecutionCancelled if the sandbox closes meanwhile, SandboxLost if no REPL can be started any more.
        """
        handle = self._created()
        order, tools = handle.cell_order, bool(handle.tools)
        cell = cells.run(handle.open(), code, language, timeout, on_disconnect, order, tools)
        return await asynchronous.run_cell(handle, cell, timeout)

    def run_code_stream(
        self,
        code: str,
        language: Language = "python",
        timeout: float | None = None,
        *,
        on_disconnect: OnDisconnect = "keep",
    ) -> AsyncGenerator[Event, None]:
        """Run a cell and give its events as they happen: OutputEvent, ResultEvent, and an ExitEvent at the end.

        The cell starts when the first event is asked for; closing the iterator early interrupts it. Arguments and
        errors are those of ``run_code``. A task that has begun to read a stream and has not reached its end gets
        InvalidArgument from every call that would wait for that cell.
        """
        handle = self._created()
        order, tools = handle.cell_order, bool(handle.tools)
        cell = cells.stream(handle.open(), code, language, timeout, on_disconnect, order, tools)
        return asynchronous.stream_cell(handle, cell)

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools whose calls this object answers."""
        return self._created().tools.names

    async def set_tools(self, tools: Iterable[AnyTool]) -> None:
        """Give the sandbox these tools instead of those it has, for cells that begin from now on.

        Raises InvalidArgument for a function that cannot be a tool.
        """
        await asynchronous.give_tools(self._created(), toolset(tools))

    @overload
    async def result(self, execution_id: str, wait: Literal[True] = True) -> Result: ...
    @overload
    async def result(self, execution_id: str, wait: bool) -> Result | None: ...
    async def result(self, execution_id: str, wait: bool = True) -> Result | None:
        """The Result of a cell whose connection broke, by the id in ``OutcomeUnknown.details["execution"]``.

        Waits for the end of the cell; with ``wait=False`` it is None while the cell runs. Raises ExecutionUnknown for
        an id that the sandbox does not know, or no longer; InvalidArgument for text that cannot be an id.
        """
        handle = self._created()
        return await asynchronous.perform(handle.engine, cells.fetch(handle.open(), execution_id, wait))

    async def replay(self) -> list[ReplayEvent]:
        """The last output of all cells, at most a mebibyte, as a list of ReplayEvent."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, cells.replay(handle.open()))

    async def extend(self, timeout_seconds: float | None = None, idle_timeout_seconds: float | None = None) -> None:
        """Reset the lifetime or the idle timeout, in seconds counted from now. None leaves it unchanged.

        Raises InvalidArgument if both are None, or for a time that is not allowed.
        """
        handle = self._created()
        await asynchronous.perform(
            handle.engine, sandboxes.extend(handle.open(), timeout_seconds, idle_timeout_seconds)
        )

    async def interrupt(self) -> bool:
        """Interrupt the running cell, from another task. False if none runs."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, cells.interrupt(handle.open()))

    async def get(self, name: str) -> Any:
        """The value of a global variable of the sandbox. Waits its turn in the queue like a cell.

        Plain data (numbers, texts, lists, dicts), bytes, arrays of numpy, DataFrames and Series of pandas come as what
        they are; tuples and sets as lists, dates as text, dataclasses as dicts. At most 100 MiB, and 16 MiB of plain
        data. Nothing in it is unpickled or run here. Raises NameUnknown, ValueUnsupported for other types, LimitReached
        for larger values, InvalidArgument for text that cannot be a name.
        """
        handle = self._created()
        data = await asynchronous.perform(handle.engine, values.get_value(handle.open(), name))
        return await asynchronous.decode_value(data)

    async def set(self, name: str, value: object) -> None:
        """Assign a value to a global variable of the sandbox. Waits its turn in the queue like a cell.

        Takes plain data, bytes, arrays of numpy, DataFrames of pandas and polars, tables of pyarrow; tuples and sets
        arrive as lists, dates as text, dataclasses and pydantic models as dicts. At most 100 MiB. Raises
        ValueUnsupported for other types, or if the sandbox lacks the library; LimitReached for larger values;
        InvalidArgument for text that cannot be a name.
        """
        from ramet.client.value_assignment import assign  # most programs set no values

        assigning = assign(name, value)
        try:
            step = next(assigning)
            while True:
                try:
                    await self._take(step)
                except BaseException as error:
                    step = assigning.throw(error)
                else:
                    step = next(assigning)
        except StopIteration:
            return

    async def _take(self, step: AssignmentStep) -> None:
        """Carry out one step of an assignment."""
        if step.kind == "upload":
            await self.files.write(step.path, step.value.pieces(CHUNK_BYTES))
        elif step.kind == "remove":
            async with asynchronous.best_effort():
                await self.files.remove(step.path)
        else:
            handle = self._created()
            await asynchronous.perform(handle.engine, values.set_value(handle.open(), step.name, step.path, step.data))

    async def upload(self, data: str | PathLike[str] | bytes, remote_path: str) -> Copied:
        """Copy bytes, a local file, or a local folder with all that is in it, to a path in the sandbox.

        Folders above the path are made. Links and special files in a folder are left out (``Copied.left_out``);
        permissions are not kept. Raises OSError if a local file cannot be read, FileError if one cannot be written in
        the sandbox, LimitReached for a folder of more than 100,000 entries or 100 levels.
        """
        if isinstance(data, str | PathLike):
            return await self.files._copy(folders.upload(data, remote_path))
        await self.files.write(remote_path, data)
        return Copied(remote_path, 1, len(data))

    @overload
    async def download(self, remote_path: str) -> bytes: ...
    @overload
    async def download(
        self, remote_path: str, local_path: str | PathLike[str], max_bytes: int = DOWNLOAD_BYTES_AT_MOST
    ) -> Copied: ...
    async def download(
        self,
        remote_path: str,
        local_path: str | PathLike[str] | None = None,
        max_bytes: int = DOWNLOAD_BYTES_AT_MOST,
    ) -> bytes | Copied:
        """Copy a file or a folder out of the sandbox to ``local_path``. Without one, return the bytes of a file.

        A file is written to ``local_path``, or into it if that is a folder. The contents of a folder go into the folder
        ``local_path``, which is made. Nothing outside of it is written, whatever the sandbox holds: links and special
        files are left out (``Copied.left_out``). Raises FileError, such as FileNotFound; LimitReached for more than
        ``max_bytes`` (16 GiB), 100,000 entries or 100 levels of folders; OSError if it cannot be written here.
        """
        if local_path is None:
            return await self.files.read(remote_path)
        return await self.files._copy(folders.download(remote_path, local_path, max_bytes))

    async def fork(
        self, n: int = 1, reseed: bool = False, inherit_secrets: bool = False, *, at: Point | str | None = None
    ) -> AsyncForks:
        """Copy this sandbox as it is between two cells, threads included. Returns a list of ``n`` copies, 1 to 256.

        Waits its turn in the queue like a cell. The random generators of the children go on as the parent's would, all
        alike; with ``reseed`` each starts anew. Each child has the parent's network rules, and connections, log and
        placeholders of its own; it can use the parent's secrets only with ``inherit_secrets``. For one child write
        ``fork()[0]``. With ``at``, a point of ``history()`` or its id, the children begin there, and it does not wait.
        Raises ForkFailed if the sandbox cannot be copied, PointUnknown if the state of the point is not kept,
        LimitReached if there is no room for the children, InvalidArgument.
        """
        handle = self._created()
        engine, tools = handle.engine, handle.tools

        def keep(made: ForkedChildren) -> AsyncForks:
            return AsyncForks((child(*one) for one in made.children), made.info)

        def child(child_id: str, fork_info: ForkInfo) -> AsyncSandbox:
            return AsyncSandbox._adopted(SandboxHandle(engine, child_id, tools=tools), fork_info)

        asked = ForkOptions(n=n, reseed=reseed, inherit_secrets=inherit_secrets, at=at)
        return await asynchronous.make(engine, forks.fork(handle.open(), asked), keep)

    async def expose(self, port: int) -> AsyncExposed:
        """Let the host connect to a server in the sandbox that listens at ``port``, now or later. Needs no network.

        The URL works on this machine; at a server, for everybody who has it. The same port again has the same URL.
        Raises InvalidArgument for a number that cannot be a port.
        """
        handle = self._created()
        exposing = network_operations.expose(handle.open(), port, handle.engine.place)
        url = await asynchronous.perform(handle.engine, exposing)
        return AsyncExposed(handle, port, url)

    async def terminal(
        self,
        command: str | Sequence[str] = "bash",
        cols: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AsyncTerminal:
        """Start a program on a terminal of its own, beside the cells. A string is a line for bash.

        Raises InvalidArgument for an argument that is not allowed, LimitReached for too many terminals.
        """
        handle = self._created()
        opening = terminals.open_terminal(handle.open(), command, cols, rows, env, cwd)
        return AsyncTerminal(TerminalHandle(handle, await asynchronous.perform(handle.engine, opening)))

    async def terminals(self) -> list[TerminalInfo]:
        """The terminals that run, and some that have ended, as a list of TerminalInfo."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, terminals.list_terminals(handle.open()))

    async def attach(self, terminal_id: str) -> AsyncTerminal:
        """Attach to a terminal that was opened before, also by another program. Reads all output that is still kept.

        Raises ExecutionUnknown if the sandbox has no terminal of this id.
        """
        handle = self._created()
        terminal = TerminalHandle(handle, terminal_id)
        await asynchronous.perform(handle.engine, terminal.poll(wait=False))
        return AsyncTerminal(terminal)

    async def snapshot(self) -> AsyncSnapshot:
        """Freeze a copy of this sandbox as it is between two cells, to make others from or to go back to.

        Waits its turn in the queue like a cell. Raises ForkFailed if it cannot be copied, LimitReached for too many.
        """
        handle = self._created()
        return await asynchronous.make(
            handle.engine,
            forks.snapshot(handle.open()),
            lambda made: AsyncSnapshot(SnapshotHandle(handle.engine, made)),
        )

    async def restore(self, snapshot: Snapshot | AsyncSnapshot) -> None:
        """Go back to the state of a snapshot, files too. Cells in the queue behind this run in that state.

        Raises SandboxClosed if the snapshot is closed, ForkFailed if it cannot be woken.
        """
        handle = self._created()
        restoring = forks.restore(handle.open(), handle.restorable(snapshot))
        await asynchronous.perform(handle.engine, restoring)

    async def history(self) -> History:
        """The past of this sandbox: a point for each cell, the oldest first, and whether its state is still kept."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, history_operations.history(handle.open()))

    async def undo(self, n: int = 1) -> Undone:
        """Go back to the state before the last cell, or the last ``n``: memory, threads and files.

        Waits its turn in the queue like a cell. What it undoes is gone from the history. Tool calls, connections and
        writes to host folders are not undone: the Undone names them. Raises PointUnknown if that state is not kept,
        InvalidArgument if there were fewer cells.
        """
        handle = self._created()
        return await asynchronous.perform(handle.engine, history_operations.undo(handle.open(), UndoOptions(n=n)))

    async def hibernate(self) -> int:
        """Write the sandbox to disk and give up its memory and processes. Returns the bytes that it takes there.

        Waits its turn in the queue like a cell. The next call of any kind wakes it, with the same id, as a fork would
        wake: threads go on, child processes and terminals are gone. Tools, rules and secrets stay. Raises LimitReached
        or RametError if it could not be written, and then it stays awake.
        """
        handle = self._created()
        return await asynchronous.perform(handle.engine, sandboxes.hibernate(handle.open()))

    async def rewind(self, point: Point | str) -> Undone:
        """Go back to the state after a point of ``history()``, or after the one of this id. Else like ``undo``.

        Raises PointUnknown if the state of the point is not kept, InvalidArgument for what cannot be an id.
        """
        handle = self._created()
        rewinding = history_operations.rewind(handle.open(), RewindOptions(point=point))
        return await asynchronous.perform(handle.engine, rewinding)

    async def merge_into(self, winner: Sandbox | AsyncSandbox) -> None:
        """Replace the state of this sandbox with the winner's. This id stays, and the winner's id no longer exists.

        Waits for the turn of both. Cells in the queue behind this run in the winner's state. Raises InvalidArgument if
        the winner is this sandbox, or belongs to another engine; SandboxClosed if it is closed.
        """
        handle = self._created()
        sandbox_id, other = handle.open(), handle.related(winner, "winner")
        await asynchronous.perform(handle.engine, forks.merge(sandbox_id, other.open()))
        other.merged(into=handle)

    async def take(
        self,
        source: Sandbox | AsyncSandbox | Snapshot | AsyncSnapshot,
        names: Collection[str] | bool | None = None,
        files: Collection[str] | bool | None = None,
        prefer: Literal["ours", "theirs"] | None = None,
    ) -> Taken:
        """Bring what another sandbox or a snapshot has changed into this one: variables by name, files by path.

        Paths may be folders and patterns; True takes all that was changed. All of it is taken or nothing. ``prefer``
        decides where both have changed the same since they were one. Values are pickled there and unpickled here,
        inside the sandboxes. ``undo`` takes it back. Waits for the turn of both. Raises MergeConflict, ValueUnsupported
        for values that cannot travel, NameUnknown, FileNotFound, LimitReached if they do not fit.
        """
        handle = self._created()
        sandbox_id, asked = handle.open(), TakeOptions(names=names, files=files, prefer=prefer)
        if hasattr(source, "_snapshot"):
            taking = forks.take_from_snapshot(sandbox_id, handle.restorable(source, "source"), asked)
        else:
            taking = forks.take(sandbox_id, handle.related(source, "source").open(), asked)
        return await asynchronous.perform(handle.engine, taking)

    async def diff(
        self, other: Sandbox | AsyncSandbox | Snapshot | AsyncSnapshot, paths: Collection[str] | None = None
    ) -> Diff:
        """Compare with another sandbox, or with a snapshot: files, below ``paths`` or all, and global names.

        With a sandbox the Diff says how the other differs from this one. With a snapshot it says what has changed here
        since: the snapshot is woken without a network for as long as the comparison takes. Waits for the turn of both.
        Raises InvalidArgument if the other belongs to another engine, SandboxClosed if it is closed, LimitReached if
        there is no room to wake the snapshot.
        """
        handle = self._created()
        sandbox_id = handle.open()
        if hasattr(other, "_snapshot"):
            comparing = forks.diff_since(sandbox_id, handle.restorable(other, "other"), paths)
        else:
            comparing = forks.diff(sandbox_id, handle.related(other, "other").open(), paths)
        return await asynchronous.perform(handle.engine, comparing)

    async def info(self) -> SandboxInfo:
        """Ask what the sandbox is, what it uses and which walls it has. Returns a SandboxInfo."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, sandboxes.info(handle.open()))

    async def close(self) -> None:
        """End the sandbox and all its processes. Cells that run or wait are cancelled. Closing twice is allowed."""
        handle = self._handle
        if handle is None:
            return
        try:
            if handle.begin_close():
                await asynchronous.perform(handle.engine, sandboxes.close(handle.id))
        except (EngineLost, EngineClosed, SandboxClosed):
            pass  # gone with its engine, or by itself
        except BaseException:
            handle.abandon()  # it is marked as closed, so a second close would do nothing
            raise

    def __reduce__(self) -> NoReturn:
        raise not_picklable("AsyncSandbox")

    if not TYPE_CHECKING:  # a type checker knows all attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_member(self, name)

    async def __aenter__(self) -> AsyncSandbox:
        await self._ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing_after(error):
            await self.close()
