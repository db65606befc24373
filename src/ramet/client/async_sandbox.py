"""AsyncSandbox: the face of Ramet for programs on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from ramet.client import asynchronous, folders, operations
from ramet.client.arguments import Mounts, Template, check_id, engine_for, sandbox_spec, server_for
from ramet.client.async_files import AsyncFiles
from ramet.client.async_forks import AsyncForks, AsyncSnapshot
from ramet.client.async_networks import AsyncExposed, AsyncSandboxNetwork
from ramet.client.async_terminals import AsyncTerminal
from ramet.client.folders import DOWNLOAD_BYTES_AT_MOST, Copied
from ramet.client.handle import Handle, SnapshotHandle, behind
from ramet.client.network import NetworkArgument, Secrets
from ramet.client.open_streams import Reading
from ramet.client.operations import Forked, OnDisconnect
from ramet.client.terminal_operations import TerminalHandle, list_terminals, open_terminal
from ramet.client.tools.tool import AnyTool, Toolset, toolset
from ramet.client.usual_names import knows_its_arguments, no_such_member, not_picklable
from ramet.errors import EngineClosed, EngineLost, RametError, SandboxClosed
from ramet.protocol.calls import CHUNK_BYTES
from ramet.protocol.checks import Language
from ramet.protocol.forks import Diff, ForkInfo
from ramet.protocol.listing import SandboxRow
from ramet.protocol.replays import ReplayEvent
from ramet.protocol.results import Event, Result, SandboxInfo
from ramet.protocol.terminals import TerminalInfo
from ramet.protocol.values import INLINE_BYTES
from ramet.transport.embedded import default_engine
from ramet.transport.seam import Engine

if TYPE_CHECKING:
    from ramet.client.forks import Snapshot
    from ramet.client.sandbox import Sandbox
    from ramet.client.values_given import Step

_REMOVE_SECONDS = 5.0  # a task that was cancelled does not wait longer to leave nothing behind


class AsyncSandbox:
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
        tools: Functions of this program that code in the sandbox can call.
        url: URL of a server (``ramet serve``) to make the sandbox at. Default: RAMET_URL, else in this process.
        api_key: Key for that server. Default: RAMET_API_KEY.

    Attributes:
        id: Name of the sandbox, unique in its engine.
        files: Its files: read, write, list and more; a AsyncFiles.
        network: Its network rules and the log of its connections; a AsyncSandboxNetwork.
        fork_info: What making it cost, if it is a child of a fork; else None. A ForkInfo.
        tools: Names of the tools whose calls are answered from here.

    Raises InvalidArgument for an argument that is not allowed, before anything is started; HostNotCapable where this
    machine cannot build the walls; TemplateFailed if the interpreter does not start; LimitReached where there is no
    room for another sandbox. Every method raises SandboxClosed once the sandbox has ended, EngineLost or EngineClosed
    if the engine has, and for a sandbox at a server Unreachable, Unauthorized, or OutcomeUnknown if the connection
    broke. A cell that fails is a Result, never an exception.
    """

    _handle: Handle | None = None
    fork_info: ForkInfo | None = None

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
        tools: Iterable[AnyTool] | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._tools = toolset(tools)
        self._template = template
        self._server = server_for(template, url, api_key)
        self._spec = sandbox_spec(
            template,
            python,
            env,
            cwd,
            mounts,
            memory_mib,
            pids,
            cpus,
            disk_mib,
            timeout_seconds,
            idle_timeout_seconds,
            network,
            secrets,
            self._server,
        )
        self.files = AsyncFiles(self)
        self.network = AsyncSandboxNetwork(self)

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
        tools: Iterable[AnyTool] | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> AsyncSandbox:
        """A new sandbox, ready for its first cell. Arguments and errors are those of the class."""
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
        """A handle of a sandbox that exists, by its id. Unlike others it may be forgotten: the sandbox then goes on.

        With ``tools`` the sandbox is given these instead of those it has. ``url`` and ``api_key`` are as for the class.
        Raises SandboxClosed if there is no such sandbox, or not any more.
        """
        check_id(sandbox_id)
        given = toolset(tools)
        engine = await _engine_at(url, api_key)
        await asynchronous.perform(engine, operations.info(sandbox_id))
        sandbox = cls._adopted(Handle(engine, sandbox_id, owned=False))
        if tools is not None:
            await _give(sandbox._created(), given)
        return sandbox

    @classmethod
    async def list_all(cls, *, url: str | None = None, api_key: str | None = None) -> list[SandboxRow]:
        """All sandboxes of this key at a server, or of this process, the oldest first."""
        return await asynchronous.perform(await _engine_at(url, api_key), operations.sandboxes())

    def __repr__(self) -> str:
        if self._handle is None:
            return "<AsyncSandbox not created>"
        return f"<AsyncSandbox {self.id} {self._handle.state}>"

    @property
    def id(self) -> str:
        """Name of the sandbox, unique in its engine. Raises SandboxClosed before it was created."""
        return self._created().id

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
        cell = handle.open().run(code, language, timeout, on_disconnect, bool(handle.tools))
        return await asynchronous.perform(handle.engine, cell, answering=handle.answering(on_loop=True))

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
        errors are those of ``run_code``. Who has begun to read a stream and has not come to its end is refused what
        would wait for that cell (InvalidArgument).
        """
        handle = self._created()
        cell = handle.open().stream(code, language, timeout, on_disconnect, bool(handle.tools))
        reading = Reading(handle.id, on_loop=True)
        return reading.of(asynchronous.iterate(handle.engine, cell, handle.answering(on_loop=True), reading))

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools whose calls are answered from here."""
        return self._created().tools.names

    async def set_tools(self, tools: Iterable[AnyTool]) -> None:
        """Give the sandbox these tools instead of those it has, for cells that begin from now on.

        Raises InvalidArgument for a function that cannot be a tool.
        """
        await _give(self._created(), toolset(tools))

    @overload
    async def result(self, execution_id: str, wait: Literal[True] = True) -> Result: ...
    @overload
    async def result(self, execution_id: str, wait: bool) -> Result | None: ...
    async def result(self, execution_id: str, wait: bool = True) -> Result | None:
        """The Result of a cell whose connection broke, by the id in ``OutcomeUnknown.details["execution"]``.

        Waits for the end of the cell; with ``wait=False`` it is None while the cell runs. Raises ExecutionUnknown for
        an id that is not known, or not any more.
        """
        handle = self._created()
        return await asynchronous.perform(handle.engine, handle.open().result(execution_id, wait))

    async def replay(self) -> list[ReplayEvent]:
        """The last output of all cells, at most a mebibyte, as a list of ReplayEvent."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, handle.open().replay())

    async def extend(self, timeout_seconds: float | None = None, idle_timeout_seconds: float | None = None) -> None:
        """Reset the lifetime or the idle timeout, in seconds counted from now. None leaves it unchanged.

        Raises InvalidArgument if both are None.
        """
        handle = self._created()
        await asynchronous.perform(handle.engine, handle.open().extend(timeout_seconds, idle_timeout_seconds))

    async def interrupt(self) -> bool:
        """Interrupt the running cell, from another task. False if none runs."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, handle.open().interrupt())

    async def get(self, name: str) -> Any:
        """The value of a global variable of the sandbox. Waits its turn in the queue like a cell.

        Plain data (numbers, texts, lists, dicts), bytes, arrays of numpy, DataFrames and Series of pandas come as what
        they are; tuples and sets as lists, dates as text, dataclasses as dicts. At most 100 MiB, and 16 MiB of plain
        data. Nothing of it is unpickled or run here. Raises NameUnknown, ValueUnsupported for other types, LimitReached
        for more, InvalidArgument for what cannot be a name.
        """
        from ramet.client import values  # most programs do without

        handle = self._created()
        data = await asynchronous.perform(handle.engine, handle.open().get_value(name))
        if len(data) <= INLINE_BYTES:
            return values.decode(data)
        # Seconds of work, perhaps, and as the sandbox pleases: other tasks of the owner's go on meanwhile.
        return await asyncio.to_thread(values.decode, data)

    async def set(self, name: str, value: object) -> None:
        """Give a global variable of the sandbox a value. Waits its turn in the queue like a cell.

        Takes plain data, bytes, arrays of numpy, DataFrames of pandas and polars, tables of pyarrow; tuples and sets
        arrive as lists, dates as text, dataclasses and pydantic models as dicts. At most 100 MiB. Raises
        ValueUnsupported for other types, or if the sandbox has not the library; LimitReached for more; InvalidArgument
        for what cannot be a name.
        """
        from ramet.client import values_given  # as above

        giving = values_given.give(name, value)
        try:
            step = next(giving)
            while True:
                try:
                    await self._give_value(step)
                except BaseException as error:
                    step = giving.throw(error)
                else:
                    step = next(giving)
        except StopIteration:
            return

    async def _give_value(self, step: Step) -> None:
        if step.kind == "upload":
            await self.files.write(step.path, step.value.pieces(CHUNK_BYTES))
        elif step.kind == "remove":
            with suppress(RametError, TimeoutError):
                async with asyncio.timeout(_REMOVE_SECONDS):
                    await self.files.remove(step.path)
        else:
            handle = self._created()
            await asynchronous.perform(handle.engine, handle.open().set_value(step.name, step.path, step.data))

    async def upload(self, data: str | PathLike[str] | bytes, remote_path: str) -> Copied:
        """Copy bytes, a local file, or a local folder with all that is in it, to a path in the sandbox.

        Folders above the path are made. Of a folder, links and special files are left out (``Copied.left_out``);
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
        """Copy a file or a folder out of the sandbox to ``local_path``. Without one: the bytes of a file.

        A file is written to ``local_path``, or into it if that is a folder. The contents of a folder go into the folder
        ``local_path``, which is made. Nothing outside of it is written, whatever the sandbox holds: links and special
        files are left out (``Copied.left_out``). Raises FileError, such as FileNotFound; LimitReached for more than
        ``max_bytes`` (16 GiB), 100,000 entries or 100 levels of folders; OSError if it cannot be written here.
        """
        if local_path is None:
            return await self.files.read(remote_path)
        return await self.files._copy(folders.download(remote_path, local_path, max_bytes))

    async def fork(self, n: int = 1, reseed: bool = False, inherit_secrets: bool = False) -> AsyncForks:
        """Copies of this sandbox as it is between two cells, threads included: a list of ``n``, 1 to 256.

        Waits its turn in the queue like a cell. The random generators of the children go on as the parent's would, all
        alike; with ``reseed`` each starts anew. Each child has the parent's network rules, and connections, log and
        placeholders of its own; it can use the parent's secrets only with ``inherit_secrets``. For one child write
        ``fork()[0]``. Raises ForkFailed if the sandbox cannot be copied, and LimitReached.
        """
        handle = self._created()

        def keep(made: Forked) -> AsyncForks:
            children = (AsyncSandbox._of(handle.engine, handle.tools, *child) for child in made.children)
            return AsyncForks(children, made.info)

        return await asynchronous.make(handle.engine, handle.open().fork(n, reseed, inherit_secrets), keep)

    @classmethod
    def _of(cls, engine: Engine, tools: Toolset, sandbox_id: str, fork_info: ForkInfo) -> AsyncSandbox:
        child = AsyncSandbox._adopted(Handle(engine, sandbox_id, tools=tools))
        child.fork_info = fork_info
        return child

    @classmethod
    def _adopted(cls, handle: Handle) -> AsyncSandbox:
        """For a sandbox that the engine has made already."""
        sandbox = cls.__new__(cls)
        sandbox._handle = handle
        sandbox.files = AsyncFiles(sandbox)
        sandbox.network = AsyncSandboxNetwork(sandbox)
        return sandbox

    async def expose(self, port: int) -> AsyncExposed:
        """Let the host connect to a server in the sandbox that listens at ``port``, now or later. Needs no network.

        The URL is for this machine; at a server, for everybody who has it. The same port again has the same URL. Raises
        InvalidArgument for what is no port.
        """
        handle = self._created()
        url = await asynchronous.perform(handle.engine, handle.open().expose(port, handle.engine.place))
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

        Raises InvalidArgument, and LimitReached for too many terminals.
        """
        handle = self._created()
        opening = open_terminal(handle.open().sandbox_id, command, cols, rows, env, cwd)
        return AsyncTerminal(TerminalHandle(handle, await asynchronous.perform(handle.engine, opening)))

    async def terminals(self) -> list[TerminalInfo]:
        """The terminals that run, and some that have ended, as a list of TerminalInfo."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, list_terminals(handle.open().sandbox_id))

    async def attach(self, terminal_id: str) -> AsyncTerminal:
        """A terminal that was opened before, also by another program. Its output is read from where it is kept.

        Raises InvalidArgument if there is none of this id.
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
            handle.engine, handle.open().snapshot(), lambda made: AsyncSnapshot(SnapshotHandle(handle.engine, made))
        )

    async def restore(self, snapshot: Snapshot | AsyncSnapshot) -> None:
        """Go back to the state of a snapshot, files too. Cells in the queue behind this run in that state.

        Raises SandboxClosed if the snapshot is closed, ForkFailed if it cannot be woken.
        """
        handle = self._created()
        sandbox = handle.open()
        await asynchronous.perform(handle.engine, sandbox.restore(handle.restorable(snapshot)))

    async def merge_into(self, winner: Sandbox | AsyncSandbox) -> None:
        """Become what the winner is, under this id; what this sandbox was is closed, and the winner's id is no more.

        Waits for the turn of both. Cells in the queue behind this run in the winner's state. Raises InvalidArgument if
        the winner is this sandbox, or one of another engine.
        """
        handle = self._created()
        sandbox, other = handle.open(), handle.related(winner, "winner")
        await asynchronous.perform(handle.engine, sandbox.merge_into(other.open()))
        other.merged(into=handle)

    async def diff(
        self, other: Sandbox | AsyncSandbox | Snapshot | AsyncSnapshot, paths: Collection[str] | None = None
    ) -> Diff:
        """Compare with another sandbox, or with a snapshot: files, below ``paths`` or all, and global names.

        With a sandbox the Diff says how the other differs from this one. With a snapshot it says what has changed here
        since: the snapshot is woken without a network for as long as the comparison takes. Waits for the turn of both.
        Raises InvalidArgument for one of another engine, SandboxClosed for one that is closed, LimitReached.
        """
        handle = self._created()
        sandbox = handle.open()
        if hasattr(other, "_snapshot"):
            comparing = sandbox.diff_since(handle.restorable(other, "other"), paths)
        else:
            comparing = sandbox.diff(handle.related(other, "other").open(), paths)
        return await asynchronous.perform(handle.engine, comparing)

    async def info(self) -> SandboxInfo:
        """What the sandbox is, uses, and is really walled in by: a SandboxInfo."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, handle.open().info())

    async def close(self) -> None:
        """End the sandbox and all its processes. Cells that run or wait are cancelled. Closing twice is no error."""
        handle = self._handle
        if handle is None:
            return
        try:
            if handle.begin_close():
                await asynchronous.perform(handle.engine, operations.close(handle.id))
        except (EngineLost, EngineClosed, SandboxClosed):
            pass  # gone with its engine, or by itself
        except BaseException:
            handle.abandon()  # it is marked as closed, so nobody would try again
            raise

    def __reduce__(self) -> NoReturn:
        raise not_picklable("AsyncSandbox")

    if not TYPE_CHECKING:  # a type checker knows all attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_member(self, name)

    async def __aenter__(self) -> AsyncSandbox:
        if self._handle is None:
            engine = self._server
            if engine is None:
                # Starting a process blocks for some milliseconds.
                engine = await asyncio.to_thread(engine_for, self._template)
            created = operations.create(self._spec)
            handle = await asynchronous.make(engine, created, lambda made: Handle(engine, made))
            try:
                if self._tools:
                    await _give(handle, self._tools)
                self._handle = handle
            except BaseException:
                handle.abandon()
                raise
        self._handle.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            await self.close()

    def __del__(self) -> None:
        if self._handle is not None:
            self._handle.forgotten(self)

    def _created(self) -> Handle:
        if self._handle is None:
            raise SandboxClosed(
                "this AsyncSandbox has not been created yet",
                hint="use `async with AsyncSandbox() as sandbox:` or `sandbox = await AsyncSandbox.create()`",
            )
        return self._handle


async def _give(handle: Handle, tools: Toolset) -> None:
    await asynchronous.perform(handle.engine, handle.open().set_tools(tools))
    handle.tools = tools


async def _engine_at(url: str | None, api_key: str | None) -> Engine:
    server = server_for(None, url, api_key)
    return server if server is not None else await asyncio.to_thread(default_engine)
