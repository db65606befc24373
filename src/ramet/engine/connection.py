"""One connection of a client: takes a request, gives its answers, and notices when the client goes away."""

from __future__ import annotations

import asyncio
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

from ramet.engine import describing, file_calls, fork_calls, server_calls, terminals, value_calls
from ramet.engine.cell import Cell
from ramet.engine.channel import Channel
from ramet.engine.collecting import Collecting
from ramet.engine.executions import Execution, Follower, new_id
from ramet.engine.network import calls as network_calls
from ramet.engine.registry import Registry
from ramet.engine.sandbox import Sandbox
from ramet.engine.spill import FOLDER, Spill
from ramet.engine.streaming import Streaming
from ramet.engine.tools import calls as tool_calls
from ramet.engine.tools.call import Answerer
from ramet.engine.transfer import Transfer, Upload
from ramet.engine.tree import Tree
from ramet.engine.turn import Caller
from ramet.engine.watching import Watcher
from ramet.errors import NO_ROOM_ERRNOS, LimitReached, ProtocolError, RametError
from ramet.protocol import calls, checks, fields
from ramet.protocol.allowances import Allowance
from ramet.protocol.frames import TO_ENGINE, Frame, encode
from ramet.protocol.refusing import must, wrong_argument
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
        self._cell: tuple[Sandbox, Cell, Execution | None] | None = None
        self._transfer: Upload | None = None
        # An upload was refused: what its client sends until it hears of that goes nowhere.
        self._dropping = False
        self._caller: Caller | None = None
        # For calls that listen: what is to be done when the client goes away.
        self._stop_listening: Callable[[], object] | None = None
        # Ids of what the last answer tells of, until the next request or the word TAKEN shows that it was read.
        self._told: Sequence[str] = ()
        self._claims = False  # the client will say TAKEN: what it has not taken is nobody's
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel = Channel(sock, TO_ENGINE, self._on_frame, self._on_end)

    def close(self) -> None:
        """Give up the call in hand, if any, as if the client had gone away."""
        self._on_end(None)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind in (calls.CHUNK, calls.END, calls.ABORT):
            if self._transfer is not None:
                self._transfer.received(frame)
            elif self._dropping:
                self._dropping = frame.kind == calls.CHUNK
            else:
                raise ProtocolError("data for a file that is not being written, or an answer that is not being given")
            return
        if self._busy:
            if frame.kind == calls.TOOL_ANSWER and frame.header.get("quiet") is True:
                tool_calls.answer_quietly(frame, self._registry)
                return
            raise ProtocolError("a request before the answer to the one before")
        if frame.kind in (calls.CLAIM, calls.TAKEN):
            self._claims = frame.kind == calls.CLAIM
            self._told = ()
            return
        self._busy = True
        self._told = ()
        self._dropping = False
        try:
            self._begin(frame)
        except ProtocolError:
            raise
        except RametError as error:
            self._dropping = frame.kind in (calls.WRITE, calls.TOOL_ANSWER) and frame.header.get("more") is True
            self._fail(error)

    def _begin(self, frame: Frame) -> None:
        header = frame.header
        if frame.kind == calls.RUN:
            self._run(header, frame.blob)
        elif frame.kind == calls.CREATE:
            self._perform(self._create(SandboxSpec.read(header), Allowance.read(header)))
        elif frame.kind == calls.FACTS:
            self._perform(self._serve(self._registry.facts()))
        elif frame.kind == calls.CLOSE:
            self._close(
                fields.text(header, "sandbox"), fields.optional_text(header, "owner"), header.get("wait") is not False
            )
        elif frame.kind == calls.INTERRUPT:
            self._answer({"interrupted": self._find(header).interrupt()})
        elif frame.kind == calls.INFO:
            self._perform(self._info(self._find(header)))
        elif frame.kind in calls.FILE_CALLS:
            self._file_call(frame)
        elif frame.kind in calls.FORK_CALLS:
            self._queued_call(frame, fork_calls.begin)
        elif frame.kind in calls.VALUE_CALLS:
            self._value_call(frame)
        elif frame.kind in calls.SERVER_CALLS:
            self._queued_call(frame, server_calls.begin)
        elif frame.kind == calls.FETCH:
            self._fetch(header)
        elif frame.kind == calls.WATCH:
            self._watch(fields.optional_text(header, "owner"))
        elif frame.kind in calls.TERMINAL_CALLS:
            self._terminal_call(frame)
        elif frame.kind == calls.TOOL_ANSWER:
            self._tool_answer(frame)
        elif frame.kind == calls.SET_TOOLS:
            self._perform(self._serve(tool_calls.give(frame, self._find(header))))
        elif frame.kind in calls.NETWORK_CALLS:
            self._perform(self._network(frame, self._find(header)))
        elif frame.kind == calls.TOOLS_GONE:
            tool_calls.gone(frame, self._registry)
            self._answer({})
        else:
            raise ProtocolError(f"a request of unknown kind {frame.kind}")

    def _find(self, header: Mapping[str, object]) -> Sandbox:
        return self._registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))

    # Cells

    def _run(self, header: Mapping[str, object], code: bytes) -> None:
        sandbox = self._find(header)
        language = fields.text(header, "language")
        timeout_seconds = fields.optional_number(header, "timeout")
        checks.check_language(language)
        checks.check_timeout(timeout_seconds)
        _check_code(code)
        stream = fields.flag(header, "stream")
        execution = None
        if "execution" in header or "on_disconnect" in header:
            execution = self._begin_execution(sandbox, header)
        sink = (
            Streaming(self._settings, self._channel, execution)
            if stream
            else Collecting(self._settings, lambda stream: self._make_spill(sandbox, stream))
        )
        if execution is None:
            cell = Cell(language, code, timeout_seconds, sink, self._on_outcome, self._fail)
        else:
            cell = execution.cell = Cell(
                language, code, timeout_seconds, sink, execution.on_outcome, execution.on_error, execution.id
            )
        if "tools" in header and fields.flag(header, "tools"):
            cell.answerer = Answerer(self._channel, self._settings)
        try:
            sandbox.submit(cell, fields.optional_text(header, "after") if "after" in header else None)
        except RametError:
            if execution is not None:
                sandbox.executions.drop(execution)  # it never was
            raise
        self._cell = (sandbox, cell, execution)

    def _begin_execution(self, sandbox: Sandbox, header: Mapping[str, object]) -> Execution | None:
        execution_id = fields.optional_text(header, "execution")
        wish = fields.optional_text(header, "on_disconnect") or "interrupt"
        if wish not in ("keep", "interrupt"):
            raise must("on_disconnect", "be 'keep' or 'interrupt'", wish)
        if execution_id is None and wish == "interrupt":
            return None
        return sandbox.executions.begin(execution_id or new_id(), wish == "keep", self._on_final)

    def _on_outcome(self, outcome: calls.Outcome) -> None:
        self._on_final(calls.encode_outcome(outcome))

    def _on_final(self, frame: bytes) -> None:
        if self._cell is not None and (answerer := self._cell[1].answerer) is not None:
            answerer.leave()
        self._cell = None
        self._stop_listening = None
        self._busy = False
        self._channel.send(frame)

    def _tool_answer(self, frame: Frame) -> None:
        if frame.header.get("quiet") is True:
            self._busy = False
            tool_calls.answer_quietly(frame, self._registry)
        else:
            self._transfer = tool_calls.answer(frame, self._registry, self._channel, self._on_answered)

    def _on_answered(self, taken: bool) -> None:
        self._transfer = None
        self._busy = False
        self._channel.send(tool_calls.TAKEN if taken else tool_calls.NOT_TAKEN)

    def _fetch(self, header: Mapping[str, object]) -> None:
        wait = fields.flag(header, "wait")
        execution = self._find(header).executions.find(fields.text(header, "execution"))
        if execution.final is None and not wait:
            self._answer({"execution": execution.id, "state": execution.state})
            return
        follower = Follower(execution, self._channel, self._settings, self._on_final)
        self._stop_listening = follower.leave
        follower.go_on()

    def _make_spill(self, sandbox: Sandbox, stream: int) -> Spill | None:
        settings = self._settings
        try:
            tree = Tree(sandbox.body.root)
        except OSError:
            return None  # out of descriptors: the result is cut all the same, with no file beside it
        path = f"{FOLDER}/{sandbox.begin_spill()}.{_STREAM_NAMES[stream]}"
        return Spill(self._registry.executor, tree, path, sandbox, settings.spill_bytes, settings.spill_pending_bytes)

    # The rest

    async def _create(self, spec: SandboxSpec, allowance: Allowance) -> None:
        sandbox = await self._registry.create(spec, allowance)
        if self._channel.detached:
            # Nobody has learnt the id, so nobody could ever close it.
            await self._registry.forget(sandbox.id)
            return
        self._told = (sandbox.id,)
        self._answer({"id": sandbox.id, "pid": sandbox.body.pid})

    async def _info(self, sandbox: Sandbox) -> None:
        while True:
            body = sandbox.body
            try:
                # In a thread: with many mappings the kernel takes long to add up a sandbox's memory.
                info = await asyncio.to_thread(describing.info, sandbox)
            except OSError:
                if body is sandbox.body:
                    raise
                continue  # another body took its place while we read
            self._answer(info)
            return

    async def _network(self, frame: Frame, sandbox: Sandbox) -> None:
        answer, brought = await network_calls.serve(frame, sandbox)
        if brought is None:
            self._answer(answer)
            return
        with brought:
            # With the first byte of the answer: nothing else waits to be sent, as there is one call at a time.
            self._busy = False
            self._channel.send_with(encode(calls.ANSWER, answer), brought.fileno())

    def _queued_call(
        self,
        frame: Frame,
        begin: Callable[[Frame, Registry, Caller, Callable[[bytes], None]], Awaitable[dict[str, object]]],
    ) -> None:
        caller = Caller()
        # Its turn is in the queue when this returns: a cell that comes next comes after it.
        work = begin(frame, self._registry, caller, self._channel.send)
        self._caller = caller
        self._perform(self._serve_queued(work))

    async def _serve_queued(self, work: Awaitable[dict[str, object]]) -> None:
        try:
            answer = await work
        finally:
            self._caller = None
        if self._channel.detached:
            # It may have ended after the last time that the work looked.
            await self._forget(fork_calls.made(answer))
            return
        self._told = fork_calls.made(answer)
        self._answer(answer)

    def _value_call(self, frame: Frame) -> None:
        sandbox, caller = self._find(frame.header), Caller()
        registry = self._registry
        transfer = Transfer(self._channel, registry.executor, registry.walks, sandbox.owner, self._settings)
        work = value_calls.begin(frame, sandbox, caller, transfer)
        self._caller = caller
        self._perform(self._serve_queued(work))

    def _watch(self, owner: str | None) -> None:
        watchers = self._registry.watchers
        watcher = Watcher(self._channel, owner, self._settings.watch_unsent_bytes, self.close)
        watchers.add(watcher)
        self._stop_listening = lambda: watchers.remove(watcher)
        self._channel.send(server_calls.everything(self._registry, owner))

    def _terminal_call(self, frame: Frame) -> None:
        work = terminals.begin(frame, self._find(frame.header), self._channel, self._settings)
        # It may last as long as the terminal: it is cancelled when the client goes away.
        self._stop_listening = self._perform(self._serve_terminal(work)).cancel

    async def _serve_terminal(self, work: Awaitable[dict[str, object]]) -> None:
        answer = await work
        self._stop_listening = None
        self._answer(answer)

    async def _serve(self, work: Awaitable[dict[str, object]]) -> None:
        self._answer(await work)

    def _close(self, sandbox_id: str, owner: str | None, wait: bool) -> None:
        if wait:
            self._perform(self._close_sandbox(sandbox_id, owner))
        else:
            self._registry.close_soon(sandbox_id, owner)
            self._answer({})

    async def _close_sandbox(self, sandbox_id: str, owner: str | None) -> None:
        await self._registry.close_sandbox(sandbox_id, owner)
        self._answer({})

    def _file_call(self, frame: Frame) -> None:
        sandbox = self._find(frame.header)
        call = file_calls.prepare(frame)
        try:
            tree = Tree(sandbox.body.root)
        except OSError as error:
            raise LimitReached(f"cannot open the files of sandbox {sandbox.id}: {error}") from None
        registry = self._registry
        transfer = self._transfer = Transfer(
            self._channel, registry.executor, registry.walks, sandbox.owner, self._settings
        )
        self._perform(self._serve_files(sandbox, call, tree, transfer, sandbox.file_call()))

    async def _serve_files(
        self,
        sandbox: Sandbox,
        call: file_calls.FileCall,
        tree: Tree,
        transfer: Transfer,
        over: asyncio.Future[None],
    ) -> None:
        try:
            await sandbox.refresh()
            answer = await call(tree, transfer)
        finally:
            self._transfer = None
            tree.close()
            over.set_result(None)
        self._answer(answer)

    def _perform(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except RametError as error:
            self._fail(error)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM_ERRNOS:
                self._fail(
                    LimitReached(f"the engine is out of resources for this call: {error.strerror}", hint=_NO_ROOM_HINT)
                )
                return
            traceback.print_exc(file=sys.stderr)
            self._fail(RametError(f"the engine failed at this call: {type(error).__name__}: {error}"))

    def _answer(self, header: Mapping[str, object]) -> None:
        self._busy = False
        self._channel.send(encode(calls.ANSWER, header))

    def _fail(self, error: RametError) -> None:
        self._on_final(calls.encode_error(error))

    def _on_end(self, error: ProtocolError | None) -> None:
        if error is not None:
            # Last words to a client that is out of step; nothing it says afterwards would be understood.
            try:
                self._socket.send(calls.encode_error(error))
            except OSError:
                pass
        self._channel.detach()
        if self._cell is not None:
            self._leave(*self._cell)
            self._cell = None
        if self._stop_listening is not None:
            self._stop_listening()
        if self._transfer is not None:
            self._transfer.abandon()
        if self._caller is not None:
            self._caller.leave()
        if self._told and (self._claims or self._channel.reset):
            # Closed without having taken or read the answer: nobody knows the ids, so nobody could ever close them.
            self._perform(self._forget(self._told))
        self._socket.close()

    def _leave(self, sandbox: Sandbox, cell: Cell, execution: Execution | None) -> None:
        """Nobody waits for this cell any more."""
        cell.sink.abandon()
        # The interrupt goes before the tools: code that is told first that nobody answers its call could end before the
        # signal comes, and would then not have been interrupted.
        if execution is None:
            sandbox.abandon(cell)
        else:
            execution.caller = None  # its end is recorded in any case
            if not execution.keep:
                sandbox.cancel(cell, "its caller went away")
        if cell.answerer is not None:
            cell.answerer.leave()

    async def _forget(self, ids: Sequence[str]) -> None:
        for some_id in ids:
            await self._registry.forget(some_id)


def _check_code(code: bytes) -> None:
    if not code.isascii():
        try:
            code.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise wrong_argument("code", "code must be UTF-8") from None
