"""Sandbox: the face of Ramet for programs that wait."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Literal, overload

from ramet.client import blocking, operations
from ramet.client.arguments import Mounts, Template, check_id, engine_for, sandbox_spec, server_for
from ramet.client.forks import Forks, Snapshot
from ramet.client.handle import Handle, SnapshotHandle, behind
from ramet.client.network import NetworkArgument, Secrets
from ramet.client.networks import Exposed, SandboxNetwork
from ramet.client.operations import OnDisconnect
from ramet.client.sources import Data, pieces
from ramet.client.terminal_operations import TerminalHandle, list_terminals, open_terminal
from ramet.client.terminals import Terminal
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
    from ramet.client.async_forks import AsyncSnapshot
    from ramet.client.async_sandbox import AsyncSandbox


class Sandbox:
    """A running Python REPL with its own memory, files, processes and walls.

    Safe to use from several threads: cells run one at a time in order of arrival, everything else at once.
    """

    _handle: Handle | None = None  # a constructor that failed leaves nothing to close

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
        given = toolset(tools)
        server = server_for(template, url, api_key)
        spec = sandbox_spec(
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
            server,
        )
        engine = server or engine_for(template)
        self._adopt(Handle(engine, blocking.perform(engine, operations.create(spec))))
        if given:
            try:
                self._give(given)
            except BaseException:
                engine.forget(self.id, calls.CLOSE)
                self._handle = None
                raise

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        tools: Iterable[AnyTool] | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> Sandbox:
        """A handle of a sandbox that exists, by its id. It may be forgotten: the sandbox then goes on.

        With ``tools`` it is given these instead of those it has; calls are answered by whoever runs the cell.
        """
        check_id(sandbox_id)
        given = toolset(tools)
        engine = server_for(None, url, api_key) or default_engine()
        blocking.perform(engine, operations.info(sandbox_id))
        sandbox = cls.__new__(cls)._adopt(Handle(engine, sandbox_id, owned=False))
        if tools is not None:
            sandbox._give(given)
        return sandbox

    @classmethod
    def list_all(cls, *, url: str | None = None, api_key: str | None = None) -> list[SandboxRow]:
        """All sandboxes of this key at a server, or of this process, the oldest first."""
        return blocking.perform(server_for(None, url, api_key) or default_engine(), operations.sandboxes())

    def _adopt(self, handle: Handle, fork_info: ForkInfo | None = None) -> Sandbox:
        """Be the handle of a sandbox that the engine has made."""
        self._handle = handle
        self._engine = handle.engine
        self._open = handle.open
        self.id = handle.id
        self.files = Files(handle)
        self.network = SandboxNetwork(handle)
        self.fork_info = fork_info
        return self

    def __repr__(self) -> str:
        if self._handle is None:
            return "<Sandbox not created>"
        return f"<Sandbox {self.id} {self._handle.state}>"

    def run_code(
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
        handle = self._own()
        cell = self._open().run(code, language, timeout, on_disconnect, bool(handle.tools))
        return blocking.perform(self._engine, cell, answering=handle.answering(patient=timeout is None))

    def run_code_stream(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,
        *,
        on_disconnect: OnDisconnect = "keep",
    ) -> Generator[Event, None, None]:
        """Run a cell and give its events as they happen. It starts when the first one is asked for.

        Closing the iterator early interrupts the cell.
        """
        handle = self._own()
        cell = self._open().stream(code, language, timeout, on_disconnect, bool(handle.tools))
        return blocking.iterate(self._engine, cell, handle.answering())

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools whose calls are answered from here."""
        return self._own().tools.names

    def set_tools(self, tools: Iterable[AnyTool]) -> None:
        """Give the sandbox these tools instead of those it has, for cells that begin from now on."""
        self._give(toolset(tools))

    def _give(self, tools: Toolset) -> None:
        blocking.perform(self._engine, self._open().set_tools(tools))
        self._own().tools = tools

    @overload
    def result(self, execution_id: str, wait: Literal[True] = True) -> Result: ...
    @overload
    def result(self, execution_id: str, wait: bool) -> Result | None: ...
    def result(self, execution_id: str, wait: bool = True) -> Result | None:
        """The result of a cell whose connection broke: ``OutcomeUnknown`` tells the id. None: it has not ended yet."""
        return blocking.perform(self._engine, self._open().result(execution_id, wait))

    def replay(self) -> list[ReplayEvent]:
        """What was printed last, by any cell, as far as it is kept."""
        return blocking.perform(self._engine, self._open().replay())

    def extend(self, timeout_seconds: float | None = None, idle_timeout_seconds: float | None = None) -> None:
        """End so many seconds from now, or when it was not used for so long. What is not given stays."""
        blocking.perform(self._engine, self._open().extend(timeout_seconds, idle_timeout_seconds))

    def interrupt(self) -> bool:
        """Interrupt the running cell, from another thread. False if none runs."""
        return blocking.perform(self._engine, self._open().interrupt())

    def upload(self, data: str | PathLike[str] | bytes, remote_path: str) -> None:
        """Copy a local file, or bytes, to a path in the sandbox."""
        if isinstance(data, str | PathLike):
            with open(data, "rb") as file:
                self.files.write(remote_path, file)
        else:
            self.files.write(remote_path, data)

    def download(self, remote_path: str) -> bytes:
        """The contents of a file in the sandbox."""
        return self.files.read(remote_path)

    def fork(self, n: int = 1, reseed: bool = False, inherit_secrets: bool = False) -> Forks:
        """Copies of this sandbox as it is between two cells, threads included. Waits its turn in the queue like a cell.

        With ``reseed`` the random generators of each child start anew; otherwise they go on as the parent's would. Each
        child has the parent's network rules, and connections, log and placeholders of its own. It can use the parent's
        secrets only with ``inherit_secrets``: without, placeholders are sent as they are.
        """
        made = blocking.perform(self._engine, self._open().fork(n, reseed, inherit_secrets))
        tools = self._own().tools
        return Forks((Sandbox._of(self._engine, tools, *child) for child in made.children), made.info)

    @classmethod
    def _of(cls, engine: Engine, tools: Toolset, sandbox_id: str, fork_info: ForkInfo) -> Sandbox:
        return Sandbox.__new__(Sandbox)._adopt(Handle(engine, sandbox_id, tools=tools), fork_info)

    def expose(self, port: int) -> Exposed:
        """Let the host connect to a server in the sandbox that listens at ``port``, now or later. Needs no network.

        The URL is for this machine; at a server, for whoever has it. The same port again has the same URL.
        """
        url = blocking.perform(self._engine, self._open().expose(port, self._engine.place))
        return Exposed(self._own(), port, url)

    def terminal(
        self,
        command: str | Sequence[str] = "bash",
        cols: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Terminal:
        """Start a program on a terminal of its own, beside the cells. A string is a line for bash."""
        opening = open_terminal(self._open().sandbox_id, command, cols, rows, env, cwd)
        return self._terminal(blocking.perform(self._engine, opening))

    def terminals(self) -> list[TerminalInfo]:
        """Those that run, and some that have ended."""
        return blocking.perform(self._engine, list_terminals(self._open().sandbox_id))

    def attach(self, terminal_id: str) -> Terminal:
        """A terminal that was opened before, also by another program. Its output is read from where it is kept."""
        terminal = self._terminal(terminal_id)
        blocking.perform(self._engine, terminal._terminal.poll(wait=False))
        return terminal

    def _terminal(self, terminal_id: str) -> Terminal:
        self._open()
        assert self._handle is not None
        return Terminal(TerminalHandle(self._handle, terminal_id))

    def snapshot(self) -> Snapshot:
        """This sandbox, frozen as it is between two cells, to make others from or to go back to."""
        return Snapshot(SnapshotHandle(self._engine, blocking.perform(self._engine, self._open().snapshot())))

    def restore(self, snapshot: Snapshot | AsyncSnapshot) -> None:
        """Go back to the state of a snapshot, files too. Cells in the queue behind this run in that state."""
        sandbox = self._open()
        blocking.perform(self._engine, sandbox.restore(self._own().restorable(snapshot)))

    def merge_into(self, winner: Sandbox | AsyncSandbox) -> None:
        """Become what the winner is, under this id; what this sandbox was is closed, and the winner's id is no more.

        Waits for the turn of both. Cells in the queue behind this run in the winner's state.
        """
        sandbox, other = self._open(), self._own().related(winner, "winner")
        blocking.perform(self._engine, sandbox.merge_into(other.open()))
        other.merged(into=self._own())

    def diff(self, other: Sandbox | AsyncSandbox, paths: Collection[str] | None = None) -> Diff:
        """How files, below ``paths`` or all, and names of the other differ from those here. Waits for both turns."""
        sandbox = self._open()
        return blocking.perform(self._engine, sandbox.diff(self._own().related(other, "other").open(), paths))

    def info(self) -> SandboxInfo:
        """What the sandbox is, uses, and is really walled in by."""
        return blocking.perform(self._engine, self._open().info())

    def close(self) -> None:
        """End the sandbox. Cells that still run or wait are cancelled. Closing twice is no error."""
        if self._handle is not None and self._handle.begin_close():
            try:
                blocking.perform(self._engine, operations.close(self.id))
            except (EngineLost, EngineClosed, SandboxClosed):
                pass  # gone with its engine, or by itself

    def _own(self) -> Handle:
        if self._handle is None:
            raise SandboxClosed("this Sandbox was never created")
        return self._handle

    def __enter__(self) -> Sandbox:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            self.close()

    def __del__(self) -> None:
        if self._handle is not None:
            self._handle.forgotten(self)


class Files:
    """The files of a sandbox, from outside: works while a cell runs. Relative paths are below /root."""

    def __init__(self, handle: Handle) -> None:
        self._engine = handle.engine
        self._open = handle.open

    def read(self, path: str) -> bytes:
        return blocking.perform(self._engine, self._open().read(path))

    def read_stream(self, path: str, chunk: int = CHUNK_BYTES) -> Generator[bytes, None, None]:
        """The file in pieces of at most ``chunk`` bytes, in constant memory."""
        return blocking.iterate(self._engine, self._open().read_stream(path, chunk))

    def write(self, path: str, data: Data) -> None:
        """Write a file, with the folders above it. A string is written as UTF-8."""
        blocking.perform(self._engine, self._open().write(path, data), pieces(data))

    def stat(self, path: str) -> FileInfo:
        return blocking.perform(self._engine, self._open().stat(path))

    def exists(self, path: str) -> bool:
        return blocking.perform(self._engine, self._open().exists(path))

    def mkdir(self, path: str, parents: bool = True) -> None:
        """Make a folder. With ``parents`` those above it too, and one that exists is no error."""
        blocking.perform(self._engine, self._open().mkdir(path, parents))

    def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or an empty folder; with ``recursive`` a folder and all that is in it."""
        blocking.perform(self._engine, self._open().remove(path, recursive))

    def rename(self, path: str, new_path: str) -> None:
        blocking.perform(self._engine, self._open().rename(path, new_path))

    def list(self, path: str = ".") -> list[FileInfo]:
        """The entries of a folder, by name."""
        return blocking.perform(self._engine, self._open().list(path))
