"""One connection of a client: takes a request, gives its answers, and notices when the client goes away."""

from __future__ import annotations

import asyncio
import socket
import sys
import traceback
from collections.abc import Coroutine, Mapping, Sequence

from ramet.engine import file_calls, fork_calls
from ramet.engine.cell import Cell
from ramet.engine.channel import Channel
from ramet.engine.collecting import Collecting
from ramet.engine.registry import Registry
from ramet.engine.sandbox import Sandbox
from ramet.engine.spill import FOLDER, Spill
from ramet.engine.streaming import Streaming
from ramet.engine.transfer import Transfer
from ramet.engine.tree import Tree
from ramet.engine.turn import Caller
from ramet.errors import NO_ROOM_ERRNOS, LimitReached, ProtocolError, RametError
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import TO_ENGINE, Frame, encode
from ramet.protocol.specs import SandboxSpec

_STREAM_NAMES = ("stdout", "stderr")
_NO_ROOM_HINT = "close some sandboxes, or raise the limits of this machine (ulimit -n, memory)"


class Connection:
    """Owns its socket. One call at a time; a warm cell is served in two callbacks, without a task."""

    def __init__(self, sock: socket.socket, registry: Registry) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._registry = registry
        self._settings = registry.settings
        self._busy = False
        self._cell: tuple[Sandbox, Cell] | None = None
        self._transfer: Transfer | None = None
        self._caller: Caller | None = None
        # Ids of what the last answer tells of, until the next request shows that it was read.
        self._told: Sequence[str] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel = Channel(sock, TO_ENGINE, self._on_frame, self._on_end)

    def close(self) -> None:
        """Give up the call in hand, if any, as if the client had gone away."""
        self._on_end(None)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind in (calls.CHUNK, calls.END, calls.ABORT):
            if self._transfer is None:
                raise ProtocolError("data for a file that is not being written")
            self._transfer.received(frame)
            return
        if self._busy:
            raise ProtocolError("a request before the answer to the one before")
        self._busy = True
        self._told = ()
        try:
            self._begin(frame)
        except ProtocolError:
            raise
        except RametError as error:
            self._fail(error)

    def _begin(self, frame: Frame) -> None:
        header = frame.header
        if frame.kind == calls.RUN:
            self._run(header, frame.blob)
        elif frame.kind == calls.CREATE:
            self._perform(self._create(SandboxSpec.read(header)))
        elif frame.kind == calls.FACTS:
            self._perform(self._facts())
        elif frame.kind == calls.CLOSE:
            self._perform(self._close_sandbox(fields.text(header, "sandbox")))
        elif frame.kind == calls.INTERRUPT:
            self._answer({"interrupted": self._find(header).interrupt()})
        elif frame.kind == calls.INFO:
            self._perform(self._info(self._find(header)))
        elif frame.kind in calls.FILE_CALLS:
            self._file_call(frame)
        elif frame.kind in calls.FORK_CALLS:
            self._fork_call(frame)
        else:
            raise ProtocolError(f"a request of unknown kind {frame.kind}")

    def _find(self, header: Mapping[str, object]) -> Sandbox:
        return self._registry.find(fields.text(header, "sandbox"))

    # Cells

    def _run(self, header: Mapping[str, object], code: bytes) -> None:
        sandbox = self._find(header)
        language = fields.text(header, "language")
        timeout_seconds = fields.optional_number(header, "timeout")
        checks.check_language(language)
        checks.check_timeout(timeout_seconds)
        _check_code(code)
        sink = (
            Streaming(self._settings, self._channel)
            if fields.flag(header, "stream")
            else Collecting(self._settings, lambda stream: self._make_spill(sandbox, stream))
        )
        cell = Cell(language, code, timeout_seconds, sink, self._on_outcome, self._fail)
        sandbox.submit(cell)
        self._cell = (sandbox, cell)

    def _on_outcome(self, outcome: calls.Outcome) -> None:
        self._cell = None
        self._busy = False
        self._channel.send(calls.encode_outcome(outcome))

    def _make_spill(self, sandbox: Sandbox, stream: int) -> Spill | None:
        settings = self._settings
        try:
            tree = Tree(sandbox.body.root)
        except OSError:
            return None  # out of descriptors: the result is cut all the same, with no file beside it
        path = f"{FOLDER}/{sandbox.next_spill()}.{_STREAM_NAMES[stream]}"
        limit_bytes = min(settings.spill_bytes, sandbox.spec.limits.disk_bytes)
        return Spill(self._registry.executor, tree, path, limit_bytes, settings.spill_pending_bytes)

    # The rest

    async def _create(self, spec: SandboxSpec) -> None:
        sandbox = await self._registry.create(spec)
        if self._channel.detached:
            # Nobody has learnt the id, so nobody could ever close it.
            await self._registry.close_sandbox(sandbox.id)
            return
        self._told = (sandbox.id,)
        self._answer({"id": sandbox.id, "pid": sandbox.body.pid})

    async def _info(self, sandbox: Sandbox) -> None:
        while True:
            body = sandbox.body
            try:
                # In a thread: with many mappings the kernel takes long to add up a sandbox's memory.
                info = await asyncio.to_thread(sandbox.info)
            except OSError:
                if body is sandbox.body:
                    raise
                continue  # another body took its place while we read
            self._answer(info)
            return

    def _fork_call(self, frame: Frame) -> None:
        caller = Caller()
        # Its turn is in the queue when this returns: a cell that comes next comes after it.
        work = fork_calls.begin(frame, self._registry, caller, self._channel.send)
        self._caller = caller
        self._perform(self._serve_fork(work))

    async def _serve_fork(self, work: fork_calls.Answer) -> None:
        try:
            answer = await work
        finally:
            self._caller = None
        self._told = fork_calls.made(answer)
        self._answer(answer)

    async def _facts(self) -> None:
        self._answer(await self._registry.facts())

    async def _close_sandbox(self, sandbox_id: str) -> None:
        await self._registry.close_sandbox(sandbox_id)
        self._answer({})

    def _file_call(self, frame: Frame) -> None:
        sandbox = self._find(frame.header)
        call = file_calls.prepare(frame)
        try:
            tree = Tree(sandbox.body.root)
        except OSError as error:
            raise LimitReached(f"cannot open the files of sandbox {sandbox.id}: {error}") from None
        self._transfer = Transfer(self._channel, self._registry.executor, self._settings)
        self._perform(self._serve_files(call, tree, self._transfer, sandbox.file_call()))

    async def _serve_files(
        self, call: file_calls.FileCall, tree: Tree, transfer: Transfer, over: asyncio.Future[None]
    ) -> None:
        try:
            answer = await call(tree, transfer)
        finally:
            self._transfer = None
            tree.close()
            over.set_result(None)
        self._answer(answer)

    def _perform(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except RametError as error:
            self._fail(error)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM_ERRNOS:
                self._fail(LimitReached(f"the engine has no room for this: {error.strerror}", hint=_NO_ROOM_HINT))
                return
            traceback.print_exc(file=sys.stderr)
            self._fail(RametError(f"the engine failed at this: {type(error).__name__}: {error}"))

    def _answer(self, header: Mapping[str, object]) -> None:
        self._busy = False
        self._channel.send(encode(calls.ANSWER, header))

    def _fail(self, error: RametError) -> None:
        self._cell = None
        self._busy = False
        self._channel.send(calls.encode_error(error))

    def _on_end(self, error: ProtocolError | None) -> None:
        if error is not None:
            # Last words to a client that is out of step; nothing it says afterwards would be understood.
            try:
                self._socket.send(calls.encode_error(error))
            except OSError:
                pass
        self._channel.detach()
        if self._cell is not None:
            sandbox, cell = self._cell
            self._cell = None
            if isinstance(cell.sink, Streaming):
                cell.sink.abandon()
            sandbox.abandon(cell)
        if self._transfer is not None:
            self._transfer.abandon()
        if self._caller is not None:
            self._caller.leave()
        if self._channel.reset and self._told:
            # Closed without having read the answer: nobody has learnt the ids, so nobody could ever close them.
            self._perform(self._forget(self._told))
        self._socket.close()

    async def _forget(self, ids: Sequence[str]) -> None:
        for some_id in ids:
            await self._registry.forget(some_id)


def _check_code(code: bytes) -> None:
    if b"\0" in code:
        raise checks.invalid("code", "has a NUL character", "text without NUL")
    if not code.isascii():
        try:
            code.decode("utf-8")
        except UnicodeDecodeError:
            raise checks.invalid("code", "is not UTF-8", "text that UTF-8 can hold") from None
