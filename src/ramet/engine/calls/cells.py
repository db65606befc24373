"""Calls about cells: run one, follow one that runs or has ended, interrupt one."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.engine.calls.call import ClientCall, Peer
from ramet.engine.cells.cell import Cell
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.files.tree import SandboxTree
from ramet.engine.output.collecting import Collecting
from ramet.engine.output.executions import Execution, Follower, new_id
from ramet.engine.output.spill import FOLDER, Spill
from ramet.engine.output.streaming import Streaming
from ramet.engine.tools.call import Answerer
from ramet.errors import RametError
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.frames import Frame

_STREAM_NAMES = ("stdout", "stderr")


class RunCall(ClientCall):
    """Runs a cell. A warm one is served in two callbacks, without a task: this one, and the one with its outcome."""

    __slots__ = ("_running",)

    def __init__(self, peer: Peer, frame: Frame) -> None:
        super().__init__(peer, frame)
        self._running: tuple[Sandbox, Cell, Execution | None] | None = None

    def begin(self) -> None:
        header, code, peer = self.frame.header, self.frame.blob, self.peer
        sandbox = self.find_sandbox()
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
            Streaming(peer.settings, peer.channel, execution)
            if stream
            else Collecting(peer.settings, lambda stream: self._make_spill(sandbox, stream))
        )
        if execution is None:
            cell = Cell(language, code, timeout_seconds, sink, self._on_outcome, self._on_error)
        else:
            cell = execution.cell = Cell(
                language, code, timeout_seconds, sink, execution.on_outcome, execution.on_error, execution.id
            )
        if "tools" in header and fields.flag(header, "tools"):
            cell.answerer = Answerer(peer.channel, peer.settings)
        try:
            sandbox.queue.submit(cell, fields.optional_text(header, "after") if "after" in header else None)
        except RametError:
            if execution is not None:
                sandbox.executions.drop(execution)  # it never was
            raise
        self._running = sandbox, cell, execution

    def _begin_execution(self, sandbox: Sandbox, header: Mapping[str, object]) -> Execution | None:
        execution_id = fields.optional_text(header, "execution")
        wish = fields.optional_text(header, "on_disconnect") or "interrupt"
        if wish not in ("keep", "interrupt"):
            raise must("on_disconnect", "be 'keep' or 'interrupt'", wish)
        if execution_id is None and wish == "interrupt":
            return None
        return sandbox.executions.begin(execution_id or new_id(), wish == "keep", self._on_final)

    def _make_spill(self, sandbox: Sandbox, stream: int) -> Spill | None:
        settings, registry = self.peer.settings, self.peer.registry
        try:
            tree = SandboxTree(sandbox.body.root)
        except OSError:
            return None  # out of descriptors: the result is cut all the same, with no file beside it
        identity = sandbox.identity
        path = f"{FOLDER}/{identity.begin_spill(sandbox.body.root)}.{_STREAM_NAMES[stream]}"
        return Spill(registry.executor, tree, path, identity, settings.spill_bytes, settings.spill_pending_bytes)

    def _on_outcome(self, outcome: calls.Outcome) -> None:
        self._on_final(calls.encode_outcome(outcome))

    def _on_error(self, error: RametError) -> None:
        self._on_final(calls.encode_error(error))

    def _on_final(self, frame: bytes) -> None:
        if self._running is not None and (answerer := self._running[1].answerer) is not None:
            answerer.leave()
        self.peer.finish(frame)

    def client_left(self) -> None:
        if self._running is None:
            return
        sandbox, cell, execution = self._running
        cell.sink.abandon()
        # The interrupt goes before the tools: code whose tool call fails first could end before the signal comes, and
        # would then not have been interrupted.
        if execution is None:
            sandbox.queue.abandon(cell)
        else:
            execution.caller = None  # its end is recorded in any case
            if not execution.keep:
                sandbox.queue.cancel(cell, "its caller went away")
        if cell.answerer is not None:
            cell.answerer.leave()


class FetchCall(ClientCall):
    """Fetches an execution: all that was recorded, then what comes, then its end."""

    def __init__(self, peer: Peer, frame: Frame) -> None:
        super().__init__(peer, frame)
        self._follower: Follower | None = None

    def begin(self) -> None:
        header, peer = self.frame.header, self.peer
        wait = fields.flag(header, "wait")
        execution = self.find_sandbox().executions.find(fields.text(header, "execution"))
        if execution.final is None and not wait:
            peer.answer({"execution": execution.id, "state": execution.state})
            return
        self._follower = Follower(execution, peer.channel, peer.settings, peer.finish)
        self._follower.go_on()

    def client_left(self) -> None:
        if self._follower is not None:
            self._follower.leave()


class InterruptCall(ClientCall):
    """Interrupts the cell that runs."""

    def begin(self) -> None:
        self.peer.answer({"interrupted": self.find_sandbox().queue.interrupt()})


def _check_code(code: bytes) -> None:
    if not code.isascii():
        try:
            code.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise wrong_argument("code", "code must be UTF-8") from None
