"""AsyncSandbox: the face of Ramet for programs on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Literal, overload

from ramet.client import asynchronous, operations
from ramet.client.arguments import Mounts, Template, check_id, engine_for, sandbox_spec, server_for
from ramet.client.async_forks import AsyncForks, AsyncSnapshot
from ramet.client.async_networks import AsyncExposed, AsyncSandboxNetwork
from ramet.client.async_terminals import AsyncTerminal
from ramet.client.handle import Handle, SnapshotHandle, behind
from ramet.client.network import NetworkArgument, Secrets
from ramet.client.operations import OnDisconnect
from ramet.client.sources import Data, async_pieces
from ramet.client.terminal_operations import TerminalHandle, list_terminals, open_terminal
from ramet.client.tools.tool import AnyTool, Toolset, toolset
from ramet.errors import EngineClosed, EngineLost, SandboxClosed
from ramet.protocol import calls
from ramet.protocol.calls import CHUNK_BYTES
from ramet.protocol.forks import Diff, ForkInfo
from ramet.protocol.listing import SandboxRow
from ramet.protocol.replays import ReplayEvent
from ramet.protocol.results import Event, FileInfo, Result, SandboxInfo
from ramet.protocol.terminals import TerminalInfo
from ramet.transport.embedded import default_engine
from ramet.transport.seam import Engine

if TYPE_CHECKING:
    from ramet.client.forks import Snapshot
    from ramet.client.sandbox import Sandbox


class AsyncSandbox:
    """A Sandbox with ``await``, created by ``async with AsyncSandbox(...)`` or ``await AsyncSandbox.create(...)``.

    A task that is cancelled while it waits for a cell interrupts the cell.
    """

    _handle: Handle | None = None
    fork_info: ForkInfo | None = None

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
        """A new sandbox, ready for its first cell."""
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
        """A handle of a sandbox that exists, by its id. It may be forgotten: the sandbox then goes on.

        With ``tools`` it is given these instead of those it has; calls are answered by whoever runs the cell.
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
        return self._created().id

    async def run_code(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,
        *,
        on_disconnect: OnDisconnect = "keep",
    ) -> Result:
        """Run a cell and wait for its result. At the timeout, in seconds, the cell is interrupted.

        If the connection to a server breaks, the cell goes on, or is interrupted: ``on_disconnect`` says which.
        """
        handle = self._created()
        cell = handle.open().run(code, language, timeout, on_disconnect, bool(handle.tools))
        return await asynchronous.perform(handle.engine, cell, answering=handle.answering(on_loop=True))

    def run_code_stream(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,
        *,
        on_disconnect: OnDisconnect = "keep",
    ) -> AsyncGenerator[Event, None]:
        """Run a cell and give its events as they happen. It starts when the first one is asked for.

        Closing the iterator early interrupts the cell.
        """
        handle = self._created()
        cell = handle.open().stream(code, language, timeout, on_disconnect, bool(handle.tools))
        return asynchronous.iterate(handle.engine, cell, handle.answering(on_loop=True))

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools whose calls are answered from here."""
        return self._created().tools.names

    async def set_tools(self, tools: Iterable[AnyTool]) -> None:
        """Give the sandbox these tools instead of those it has, for cells that begin from now on."""
        await _give(self._created(), toolset(tools))

    @overload
    async def result(self, execution_id: str, wait: Literal[True] = True) -> Result: ...
    @overload
    async def result(self, execution_id: str, wait: bool) -> Result | None: ...
    async def result(self, execution_id: str, wait: bool = True) -> Result | None:
        """The result of a cell whose connection broke: ``OutcomeUnknown`` tells the id. None: it has not ended yet."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, handle.open().result(execution_id, wait))

    async def replay(self) -> list[ReplayEvent]:
        """What was printed last, by any cell, as far as it is kept."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, handle.open().replay())

    async def extend(self, timeout_seconds: float | None = None, idle_timeout_seconds: float | None = None) -> None:
        """End so many seconds from now, or when it was not used for so long. What is not given stays."""
        handle = self._created()
        await asynchronous.perform(handle.engine, handle.open().extend(timeout_seconds, idle_timeout_seconds))

    async def interrupt(self) -> bool:
        """Interrupt the running cell, from another task. False if none runs."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, handle.open().interrupt())

    async def upload(self, data: str | PathLike[str] | bytes, remote_path: str) -> None:
        """Copy a local file, or bytes, to a path in the sandbox."""
        if isinstance(data, str | PathLike):
            with await asyncio.to_thread(open, data, "rb") as file:
                await self.files.write(remote_path, file)
        else:
            await self.files.write(remote_path, data)

    async def download(self, remote_path: str) -> bytes:
        """The contents of a file in the sandbox."""
        return await self.files.read(remote_path)

    async def fork(self, n: int = 1, reseed: bool = False, inherit_secrets: bool = False) -> AsyncForks:
        """Copies of this sandbox as it is between two cells, threads included. Waits its turn in the queue like a cell.

        With ``reseed`` the random generators of each child start anew; otherwise they go on as the parent's would. Each
        child has the parent's network rules, and connections, log and placeholders of its own. It can use the parent's
        secrets only with ``inherit_secrets``: without, placeholders are sent as they are.
        """
        handle = self._created()
        made = await asynchronous.perform(handle.engine, handle.open().fork(n, reseed, inherit_secrets))
        children = (AsyncSandbox._of(handle.engine, handle.tools, *child) for child in made.children)
        return AsyncForks(children, made.info)

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

        The URL is for this machine; at a server, for whoever has it. The same port again has the same URL.
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
        """Start a program on a terminal of its own, beside the cells. A string is a line for bash."""
        handle = self._created()
        opening = open_terminal(handle.open().sandbox_id, command, cols, rows, env, cwd)
        return AsyncTerminal(TerminalHandle(handle, await asynchronous.perform(handle.engine, opening)))

    async def terminals(self) -> list[TerminalInfo]:
        """Those that run, and some that have ended."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, list_terminals(handle.open().sandbox_id))

    async def attach(self, terminal_id: str) -> AsyncTerminal:
        """A terminal that was opened before, also by another program. Its output is read from where it is kept."""
        handle = self._created()
        terminal = TerminalHandle(handle, terminal_id)
        await asynchronous.perform(handle.engine, terminal.poll(wait=False))
        return AsyncTerminal(terminal)

    async def snapshot(self) -> AsyncSnapshot:
        """This sandbox, frozen as it is between two cells, to make others from or to go back to."""
        handle = self._created()
        return AsyncSnapshot(
            SnapshotHandle(handle.engine, await asynchronous.perform(handle.engine, handle.open().snapshot()))
        )

    async def restore(self, snapshot: Snapshot | AsyncSnapshot) -> None:
        """Go back to the state of a snapshot, files too. Cells in the queue behind this run in that state."""
        handle = self._created()
        sandbox = handle.open()
        await asynchronous.perform(handle.engine, sandbox.restore(handle.restorable(snapshot)))

    async def merge_into(self, winner: Sandbox | AsyncSandbox) -> None:
        """Become what the winner is, under this id; what this sandbox was is closed, and the winner's id is no more.

        Waits for the turn of both. Cells in the queue behind this run in the winner's state.
        """
        handle = self._created()
        sandbox, other = handle.open(), handle.related(winner, "winner")
        await asynchronous.perform(handle.engine, sandbox.merge_into(other.open()))
        other.merged(into=handle)

    async def diff(self, other: Sandbox | AsyncSandbox, paths: Collection[str] | None = None) -> Diff:
        """How files, below ``paths`` or all, and names of the other differ from those here. Waits for both turns."""
        handle = self._created()
        sandbox = handle.open()
        return await asynchronous.perform(handle.engine, sandbox.diff(handle.related(other, "other").open(), paths))

    async def info(self) -> SandboxInfo:
        """What the sandbox is, uses, and is really walled in by."""
        handle = self._created()
        return await asynchronous.perform(handle.engine, handle.open().info())

    async def close(self) -> None:
        """End the sandbox. Cells that still run or wait are cancelled. Closing twice is no error."""
        handle = self._handle
        if handle is not None and handle.begin_close():
            try:
                await asynchronous.perform(handle.engine, operations.close(handle.id))
            except (EngineLost, EngineClosed, SandboxClosed):
                pass  # gone with its engine, or by itself

    async def __aenter__(self) -> AsyncSandbox:
        if self._handle is None:
            engine = self._server
            if engine is None:
                # Starting a process blocks for some milliseconds.
                engine = await asyncio.to_thread(engine_for, self._template)
            sandbox_id = await asynchronous.perform(engine, operations.create(self._spec))
            handle = Handle(engine, sandbox_id)
            if self._tools:
                try:
                    await _give(handle, self._tools)
                except BaseException:
                    engine.forget(sandbox_id, calls.CLOSE)
                    raise
            self._handle = handle
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


class AsyncFiles:
    """The files of a sandbox, from outside: works while a cell runs. Relative paths are below /root."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().read(path))

    def read_stream(self, path: str, chunk: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        """The file in pieces of at most ``chunk`` bytes, in constant memory."""
        handle = self._sandbox._created()
        return asynchronous.iterate(handle.engine, handle.open().read_stream(path, chunk))

    async def write(self, path: str, data: Data | AsyncIterable[bytes]) -> None:
        """Write a file, with the folders above it. A string is written as UTF-8."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().write(path, data), async_pieces(data))

    async def stat(self, path: str) -> FileInfo:
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().stat(path))

    async def exists(self, path: str) -> bool:
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().exists(path))

    async def mkdir(self, path: str, parents: bool = True) -> None:
        """Make a folder. With ``parents`` those above it too, and one that exists is no error."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().mkdir(path, parents))

    async def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or an empty folder; with ``recursive`` a folder and all that is in it."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().remove(path, recursive))

    async def rename(self, path: str, new_path: str) -> None:
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().rename(path, new_path))

    async def list(self, path: str = ".") -> list[FileInfo]:
        """The entries of a folder, by name."""
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().list(path))
