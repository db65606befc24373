"""Sandbox: the face of Ramet for programs that wait."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from ramet.client import blocking, folders, operations
from ramet.client.arguments import Mounts, Template, check_id, engine_for, sandbox_spec, server_for
from ramet.client.files import Files
from ramet.client.folders import DOWNLOAD_BYTES_AT_MOST, Copied
from ramet.client.forks import Forks, Snapshot
from ramet.client.handle import Handle, SnapshotHandle, behind
from ramet.client.network import NetworkArgument, Secrets
from ramet.client.networks import Exposed, SandboxNetwork
from ramet.client.open_streams import Reading
from ramet.client.operations import Forked, OnDisconnect
from ramet.client.terminal_operations import TerminalHandle, list_terminals, open_terminal
from ramet.client.terminals import Terminal
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
from ramet.transport.embedded import default_engine
from ramet.transport.seam import Engine

if TYPE_CHECKING:
    from ramet.client.async_forks import AsyncSnapshot
    from ramet.client.async_sandbox import AsyncSandbox
    from ramet.client.values_given import Step


class Sandbox:
    """A running Python REPL with its own memory, files, processes and walls.

        with Sandbox() as sandbox:
            print(sandbox.run_code("6 * 7"))

    Safe to use from several threads: cells run one at a time in order of arrival, everything else at once.

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
        files: Its files: read, write, list and more; a Files.
        network: Its network rules and the log of its connections; a SandboxNetwork.
        fork_info: What making it cost, if it is a child of a fork; else None. A ForkInfo.
        tools: Names of the tools whose calls are answered from here.

    Raises InvalidArgument for an argument that is not allowed, before anything is started; HostNotCapable where this
    machine cannot build the walls; TemplateFailed if the interpreter does not start; LimitReached where there is no
    room for another sandbox. Every method raises SandboxClosed once the sandbox has ended, EngineLost or EngineClosed
    if the engine has, and for a sandbox at a server Unreachable, Unauthorized, or OutcomeUnknown if the connection
    broke. A cell that fails is a Result, never an exception.
    """

    _handle: Handle | None = None  # a constructor that failed leaves nothing to close

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
        try:
            blocking.make(engine, operations.create(spec), lambda made: self._adopt(Handle(engine, made)))
            if given:
                self._give(given)
        except BaseException as error:
            if self._handle is not None:
                self._handle.abandon()
                self._handle = None
            if isinstance(error, KeyboardInterrupt):
                # Where in Ramet it came says nothing to whoever pressed Ctrl-C.
                raise error.with_traceback(None) from None
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
        """A handle of a sandbox that exists, by its id. Unlike others it may be forgotten: the sandbox then goes on.

        With ``tools`` the sandbox is given these instead of those it has. ``url`` and ``api_key`` are as for the class.
        Raises SandboxClosed if there is no such sandbox, or not any more.
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
        handle = self._own()
        cell = self._open().run(code, language, timeout, on_disconnect, bool(handle.tools))
        return blocking.perform(self._engine, cell, answering=handle.answering(patient=timeout is None))

    def run_code_stream(
        self,
        code: str,
        language: Language = "python",
        timeout: float | None = None,
        *,
        on_disconnect: OnDisconnect = "keep",
    ) -> Generator[Event, None, None]:
        """Run a cell and give its events as they happen: OutputEvent, ResultEvent, and an ExitEvent at the end.

        The cell starts when the first event is asked for; closing the iterator early interrupts it. Arguments and
        errors are those of ``run_code``. Who has begun to read a stream and has not come to its end is refused what
        would wait for that cell (InvalidArgument).
        """
        handle = self._own()
        cell = self._open().stream(code, language, timeout, on_disconnect, bool(handle.tools))
        reading = Reading(self.id)
        return reading.of(blocking.iterate(self._engine, cell, handle.answering(), reading))

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools whose calls are answered from here."""
        return self._own().tools.names

    def set_tools(self, tools: Iterable[AnyTool]) -> None:
        """Give the sandbox these tools instead of those it has, for cells that begin from now on.

        Raises InvalidArgument for a function that cannot be a tool.
        """
        self._give(toolset(tools))

    def _give(self, tools: Toolset) -> None:
        blocking.perform(self._engine, self._open().set_tools(tools))
        self._own().tools = tools

    @overload
    def result(self, execution_id: str, wait: Literal[True] = True) -> Result: ...
    @overload
    def result(self, execution_id: str, wait: bool) -> Result | None: ...
    def result(self, execution_id: str, wait: bool = True) -> Result | None:
        """The Result of a cell whose connection broke, by the id in ``OutcomeUnknown.details["execution"]``.

        Waits for the end of the cell; with ``wait=False`` it is None while the cell runs. Raises ExecutionUnknown for
        an id that is not known, or not any more.
        """
        return blocking.perform(self._engine, self._open().result(execution_id, wait))

    def replay(self) -> list[ReplayEvent]:
        """The last output of all cells, at most a mebibyte, as a list of ReplayEvent."""
        return blocking.perform(self._engine, self._open().replay())

    def extend(self, timeout_seconds: float | None = None, idle_timeout_seconds: float | None = None) -> None:
        """Reset the lifetime or the idle timeout, in seconds counted from now. None leaves it unchanged.

        Raises InvalidArgument if both are None.
        """
        blocking.perform(self._engine, self._open().extend(timeout_seconds, idle_timeout_seconds))

    def interrupt(self) -> bool:
        """Interrupt the running cell, from another thread. False if none runs."""
        return blocking.perform(self._engine, self._open().interrupt())

    def get(self, name: str) -> Any:
        """The value of a global variable of the sandbox. Waits its turn in the queue like a cell.

        Plain data (numbers, texts, lists, dicts), bytes, arrays of numpy, DataFrames and Series of pandas come as what
        they are; tuples and sets as lists, dates as text, dataclasses as dicts. At most 100 MiB, and 16 MiB of plain
        data. Nothing of it is unpickled or run here. Raises NameUnknown, ValueUnsupported for other types, LimitReached
        for more, InvalidArgument for what cannot be a name.
        """
        from ramet.client import values  # most programs do without

        return values.decode(blocking.perform(self._engine, self._open().get_value(name)))

    def set(self, name: str, value: object) -> None:
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
                    self._give_value(step)
                except BaseException as error:
                    step = giving.throw(error)
                else:
                    step = next(giving)
        except StopIteration:
            return

    def _give_value(self, step: Step) -> None:
        if step.kind == "upload":
            self.files.write(step.path, step.value.pieces(CHUNK_BYTES))
        elif step.kind == "remove":
            with suppress(RametError):
                self.files.remove(step.path)
        else:
            blocking.perform(self._engine, self._open().set_value(step.name, step.path, step.data))

    def upload(self, data: str | PathLike[str] | bytes, remote_path: str) -> Copied:
        """Copy bytes, a local file, or a local folder with all that is in it, to a path in the sandbox.

        Folders above the path are made. Of a folder, links and special files are left out (``Copied.left_out``);
        permissions are not kept. Raises OSError if a local file cannot be read, FileError if one cannot be written in
        the sandbox, LimitReached for a folder of more than 100,000 entries or 100 levels.
        """
        if isinstance(data, str | PathLike):
            return self.files._copy(folders.upload(data, remote_path))
        self.files.write(remote_path, data)
        return Copied(remote_path, 1, len(data))

    @overload
    def download(self, remote_path: str) -> bytes: ...
    @overload
    def download(
        self, remote_path: str, local_path: str | PathLike[str], max_bytes: int = DOWNLOAD_BYTES_AT_MOST
    ) -> Copied: ...
    def download(
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
            return self.files.read(remote_path)
        return self.files._copy(folders.download(remote_path, local_path, max_bytes))

    def fork(self, n: int = 1, reseed: bool = False, inherit_secrets: bool = False) -> Forks:
        """Copies of this sandbox as it is between two cells, threads included: a list of ``n``, 1 to 256.

        Waits its turn in the queue like a cell. The random generators of the children go on as the parent's would, all
        alike; with ``reseed`` each starts anew. Each child has the parent's network rules, and connections, log and
        placeholders of its own; it can use the parent's secrets only with ``inherit_secrets``. For one child write
        ``fork()[0]``. Raises ForkFailed if the sandbox cannot be copied, and LimitReached.
        """
        engine, tools = self._engine, self._own().tools

        def keep(made: Forked) -> Forks:
            return Forks((Sandbox._of(engine, tools, *child) for child in made.children), made.info)

        return blocking.make(engine, self._open().fork(n, reseed, inherit_secrets), keep)

    @classmethod
    def _of(cls, engine: Engine, tools: Toolset, sandbox_id: str, fork_info: ForkInfo) -> Sandbox:
        return Sandbox.__new__(Sandbox)._adopt(Handle(engine, sandbox_id, tools=tools), fork_info)

    def expose(self, port: int) -> Exposed:
        """Let the host connect to a server in the sandbox that listens at ``port``, now or later. Needs no network.

        The URL is for this machine; at a server, for everybody who has it. The same port again has the same URL. Raises
        InvalidArgument for what is no port.
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
        """Start a program on a terminal of its own, beside the cells. A string is a line for bash.

        Raises InvalidArgument, and LimitReached for too many terminals.
        """
        opening = open_terminal(self._open().sandbox_id, command, cols, rows, env, cwd)
        return self._terminal(blocking.perform(self._engine, opening))

    def terminals(self) -> list[TerminalInfo]:
        """The terminals that run, and some that have ended, as a list of TerminalInfo."""
        return blocking.perform(self._engine, list_terminals(self._open().sandbox_id))

    def attach(self, terminal_id: str) -> Terminal:
        """A terminal that was opened before, also by another program. Its output is read from where it is kept.

        Raises InvalidArgument if there is none of this id.
        """
        terminal = self._terminal(terminal_id)
        blocking.perform(self._engine, terminal._terminal.poll(wait=False))
        return terminal

    def _terminal(self, terminal_id: str) -> Terminal:
        self._open()
        assert self._handle is not None
        return Terminal(TerminalHandle(self._handle, terminal_id))

    def snapshot(self) -> Snapshot:
        """Freeze a copy of this sandbox as it is between two cells, to make others from or to go back to.

        Waits its turn in the queue like a cell. Raises ForkFailed if it cannot be copied, LimitReached for too many.
        """
        engine = self._engine
        return blocking.make(engine, self._open().snapshot(), lambda made: Snapshot(SnapshotHandle(engine, made)))

    def restore(self, snapshot: Snapshot | AsyncSnapshot) -> None:
        """Go back to the state of a snapshot, files too. Cells in the queue behind this run in that state.

        Raises SandboxClosed if the snapshot is closed, ForkFailed if it cannot be woken.
        """
        sandbox = self._open()
        blocking.perform(self._engine, sandbox.restore(self._own().restorable(snapshot)))

    def merge_into(self, winner: Sandbox | AsyncSandbox) -> None:
        """Become what the winner is, under this id; what this sandbox was is closed, and the winner's id is no more.

        Waits for the turn of both. Cells in the queue behind this run in the winner's state. Raises InvalidArgument if
        the winner is this sandbox, or one of another engine.
        """
        sandbox, other = self._open(), self._own().related(winner, "winner")
        blocking.perform(self._engine, sandbox.merge_into(other.open()))
        other.merged(into=self._own())

    def diff(
        self, other: Sandbox | AsyncSandbox | Snapshot | AsyncSnapshot, paths: Collection[str] | None = None
    ) -> Diff:
        """Compare with another sandbox, or with a snapshot: files, below ``paths`` or all, and global names.

        With a sandbox the Diff says how the other differs from this one. With a snapshot it says what has changed here
        since: the snapshot is woken without a network for as long as the comparison takes. Waits for the turn of both.
        Raises InvalidArgument for one of another engine, SandboxClosed for one that is closed, LimitReached.
        """
        sandbox = self._open()
        if hasattr(other, "_snapshot"):
            comparing = sandbox.diff_since(self._own().restorable(other, "other"), paths)
        else:
            comparing = sandbox.diff(self._own().related(other, "other").open(), paths)
        return blocking.perform(self._engine, comparing)

    def info(self) -> SandboxInfo:
        """What the sandbox is, uses, and is really walled in by: a SandboxInfo."""
        return blocking.perform(self._engine, self._open().info())

    def close(self) -> None:
        """End the sandbox and all its processes. Cells that run or wait are cancelled. Closing twice is no error."""
        handle = self._handle
        if handle is None:
            return
        try:
            if handle.begin_close():
                blocking.perform(self._engine, operations.close(self.id))
        except (EngineLost, EngineClosed, SandboxClosed):
            pass  # gone with its engine, or by itself
        except BaseException:
            handle.abandon()  # it is marked as closed, so nobody would try again
            raise

    def _own(self) -> Handle:
        if self._handle is None:
            raise SandboxClosed("this Sandbox was never created")
        return self._handle

    def __reduce__(self) -> NoReturn:
        raise not_picklable("Sandbox")

    if not TYPE_CHECKING:  # a type checker knows all attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_member(self, name)

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
