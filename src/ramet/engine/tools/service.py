"""Passes the tool calls of one sandbox from its tool socket to the client of the running cell, and answers back."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter, deque
from time import perf_counter

from ramet.engine.busy_selector import expect_message
from ramet.engine.cells.cell import Cell
from ramet.engine.cells.repl import Repl
from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.engine.tools.call import Arriving, PendingToolAnswer
from ramet.engine.tools.link import ToolConnection
from ramet.engine.tools.listening import ToolSocket, open_tool_socket
from ramet.engine.tools.records import ToolCallRecords
from ramet.errors import SandboxClosed
from ramet.protocol.tools.specs import GivenTools, ToolSpec

_NO_CELL = "no cell is running: a tool can be called only while one is"
_NO_ANSWERER = "the program that runs this cell answers no tool calls"
_GONE = "the program that answers tool calls has gone away"
_CELL_ENDED = "the cell that made this call has ended"

# kind, message
_Refusal = tuple[str, str]


class ToolService:
    """Owned by a sandbox, one for each body. A call belongs to the cell that runs when the call arrives.

    The client of that cell may answer until the cell ends, the tool times out, or the calling code disconnects.
    Everything here runs in the loop's thread: between two awaits nothing else changes the tables.
    """

    def __init__(self, body: Body, settings: Settings, given: GivenTools) -> None:
        self.given = given  # takes effect with the next cell
        self._body = body
        self._settings = settings
        self._opening = asyncio.Lock()
        self._closed = False
        self._socket: ToolSocket | None = None
        self._name = ""
        self._in_force = given
        self._cell: Cell | None = None
        self._repl: Repl | None = None
        self._counts: Counter[str] = Counter()
        self._calls: dict[str, PendingToolAnswer] = {}
        self._untold: deque[PendingToolAnswer] = deque()  # wait until the client has read what it was sent
        self._ids = f"tc_{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"<ToolService {self._name or 'not open'}, {len(self._calls)} calls>"

    @property
    def ready(self) -> bool:
        """Whether a cell can begin without waiting for ``open``."""
        return self._socket is not None or not self.given.by_name

    async def open(self) -> None:
        """Listen in the sandbox. Does nothing if it listens already. Raises SandboxClosed or SandboxLost."""
        # The lock: a cell that starts while tools are being given must not open a second socket beside the first.
        async with self._opening:
            if self._socket is not None:
                return
            name, listener = await open_tool_socket(self._body)
            if self._closed:  # close() ran while the pod made the socket
                listener.close()
                raise SandboxClosed("the sandbox was closed before it could listen for tool calls")
            self._name = name
            self._socket = ToolSocket(listener, self._settings, self._on_call, self._on_link_end)

    def close(self) -> None:
        """Fail all calls and close all connections at once."""
        self._closed = True
        if self._cell is not None:
            self.end_cell()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # The cell

    def begin_cell(self, cell: Cell, repl: Repl) -> None:
        """Make the given tools those of the cell. Call it just before the cell is sent: the order of frames matters."""
        self._cell, self._repl, self._in_force = cell, repl, self.given
        if self._counts:
            self._counts = Counter()
        if cell.answerer is not None:
            cell.answerer.on_gone = self._on_gone
        repl.tell_tools(self._name, self.given.encoded)

    def end_cell(self) -> None:
        """Fail the calls that still wait. Calls of threads that go on are refused from now on."""
        cell, self._cell = self._cell, None
        for call in tuple(self._calls.values()):  # a copy: _fail removes each from the table
            self._fail(call, "cancelled", _CELL_ENDED)
        if cell is not None and cell.answerer is not None:
            cell.answerer.on_gone = None

    def _on_gone(self) -> None:
        for call in tuple(self._calls.values()):
            self._fail(call, "gone", _GONE)

    # Calls from the sandbox

    def _on_call(self, link: ToolConnection, name: str, accepts: str, arguments: bytes) -> None:
        tool = self._in_force.by_name.get(name)
        refusal = self._refusal(name, tool)
        cell = self._cell
        if refusal is not None or tool is None or cell is None or cell.answerer is None:
            kind, message = refusal or ("refused", _NO_CELL)
            link.passed_on()  # the arguments are not needed: others may use their room
            link.failure(kind, message)
            if cell is not None:
                _records(cell).add(name, arguments, 0.0, kind, message)
            return
        self._counts[name] += 1
        call = PendingToolAnswer(
            f"{self._ids}_{next(self._numbers)}",
            tool,
            accepts,
            arguments,
            link,
            cell.answerer,
            _records(cell),
            perf_counter(),
        )
        self._calls[call.id] = link.call = call
        if tool.timeout_seconds is not None:
            call.timer = asyncio.get_running_loop().call_later(tool.timeout_seconds, self._on_timeout, call)
        # Calls reach the client in order: while one waits for room, later ones queue behind it.
        if self._untold or cell.answerer.full():
            self._untold.append(call)
            if len(self._untold) == 1:
                cell.answerer.when_room(self._go_on)
        else:
            self._tell(call)

    def _refusal(self, name: str, tool: ToolSpec | None) -> _Refusal | None:
        cell = self._cell
        if cell is None:
            return "refused", _NO_CELL
        if tool is None:
            return "unknown", f"this sandbox was given no tool {name!r:.80}"
        if cell.answerer is None:
            return "refused", _NO_ANSWERER
        if cell.answerer.gone:
            return "gone", _GONE
        if tool.calls_per_cell is not None and self._counts[name] >= tool.calls_per_cell:
            return "refused", f"tool {name} was called {tool.calls_per_cell} times in this cell, which is its limit"
        return None

    def _tell(self, call: PendingToolAnswer) -> None:
        cell = self._cell
        if cell is not None and cell.sink.live and self._repl is not None:
            # Output and calls come through different sockets. Reading the output first keeps the order of the cell.
            self._repl.take_output()
        call.tell()
        expect_message()

    def _go_on(self) -> None:
        """The client has read most of what it was sent: send the calls that wait."""
        while self._untold:
            call = self._untold[0]
            if call.answerer.full() and not call.answerer.gone:
                call.answerer.when_room(self._go_on)
                return
            self._untold.popleft()
            self._tell(call)

    def _on_link_end(self, link: ToolConnection) -> None:
        """The calling code has closed its connection, broken the protocol, or died."""
        call = link.call
        if call is not None:
            self._over(call)
            call.take_back()
            call.record("cancelled", "the code that made this call waits for it no more")

    def _on_timeout(self, call: PendingToolAnswer) -> None:
        self._fail(
            call, "timeout", f"tool {call.tool.name} gave no answer within {call.tool.timeout_seconds:g} seconds"
        )

    # The answer

    def find(self, call_id: str) -> PendingToolAnswer | None:
        """The call of this id, if the client may still answer it: it was sent, and no answer is arriving."""
        # A second answer while the first is arriving would mix with it on the connection.
        call = self._calls.get(call_id)
        return call if call is not None and call.told and call.arriving is None else None

    def answer(self, call: PendingToolAnswer, value: bytes) -> None:
        """Answer with a value in one part."""
        self._over(call)
        call.link.value(value, more=False)
        expect_message()
        call.record("ok", None)

    def answer_in_parts(self, call: PendingToolAnswer, first: bytes, arriving: Arriving) -> None:
        """Answer with the first part of a value. More go to ``call.link``; ``answered`` or ``break_off`` end it."""
        call.arriving = arriving
        self._stop_timer(call)  # the tool has answered in time; how fast the value arrives is up to the code's reading
        call.link.value(first, more=True)

    def answered(self, call: PendingToolAnswer) -> None:
        self._over(call)
        call.link.part(b"", more=False)
        call.record("ok", None)

    def break_off(self, call: PendingToolAnswer, message: str) -> None:
        """Give up an answer in the middle. The code has read its beginning, so only closing the connection says so."""
        self._fail(call, "gone", message)

    def fail(self, call: PendingToolAnswer, kind: str, message: str) -> None:
        """Answer with a failure that the client reports."""
        self._over(call)
        call.link.failure(kind, message)
        expect_message()
        call.record(kind, message)

    def _fail(self, call: PendingToolAnswer, kind: str, message: str) -> None:
        """End a call without an answer of the client, or in the middle of one."""
        link = call.link
        # Out of the tables first: the end of the link, which may follow, must not end the call a second time.
        self._over(call)
        call.take_back()
        if call.arriving is None:
            link.failure(kind, message)
        elif self._socket is not None:
            self._socket.drop(link)
        call.record(kind, message)

    def _over(self, call: PendingToolAnswer) -> None:
        """Remove a call from every table. Each call ends here exactly once, whichever side ends it first."""
        del self._calls[call.id]
        if not call.told:
            self._untold.remove(call)
        self._stop_timer(call)
        call.link.passed_on()
        call.link.over()
        if call.arriving is not None:
            call.arriving.lost()
        if self._socket is not None:
            self._socket.accept()  # the link is idle now: a connection that waits may take its place

    def _stop_timer(self, call: PendingToolAnswer) -> None:
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None


def _records(cell: Cell) -> ToolCallRecords:
    if cell.tool_records is None:
        cell.tool_records = ToolCallRecords()
    return cell.tool_records
