"""A cell on its way through a sandbox, and the sink of its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ramet.engine.cells.interrupt_ladder import Ladder
from ramet.errors import RametError
from ramet.protocol.calls import Outcome
from ramet.protocol.guest import Rich
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.results import Truncated

if TYPE_CHECKING:
    from ramet.engine.tools.call import Answerer
    from ramet.engine.tools.records import ToolCallRecords


class Collected(NamedTuple):
    """The output that a sink kept for the result."""

    stdout: bytes = b""
    stderr: bytes = b""
    rich: tuple[Rich, ...] = ()
    truncated: Truncated | None = None


class Sink(Protocol):
    """Receives the output and the displays of a running cell."""

    @property
    def live(self) -> bool:
        """Whether a client waits for each piece, so that the pipes must be read at once."""

    def output(self, stream: int, data: bytes) -> None: ...

    def rich(self, rich: Rich) -> None: ...

    def full(self, when_room: Callable[[], None]) -> bool:
        """Whether the sink can take no more now. If so, ``when_room`` is called once when it can."""

    def collect(self, then: Callable[[Collected], None]) -> None:
        """The cell has ended: call ``then`` with what was kept, at once if nothing remains to be written."""

    def abandon(self) -> None:
        """The client has disconnected and the cell goes on: from now on ``full`` must not wait for a reader."""

    def discard(self) -> None:
        """The cell will have no outcome: release everything."""


@dataclass(slots=True, eq=False)
class Cell:
    """One block of code, from the queue to its outcome. Exactly one of the two callbacks is called, once."""

    language: str
    code: bytes
    timeout_seconds: float | None
    sink: Sink
    on_outcome: Callable[[Outcome], None]
    on_error: Callable[[RametError], None]
    execution: str = ""  # its id, if it has one
    answerer: Answerer | None = None  # answers its tool calls
    # The client has disconnected: nobody reads the outcome.
    abandoned: bool = False
    # An interrupt came while a REPL was still being prepared for the cell, which had no process to signal yet.
    interrupted: bool = False
    restored: bool = False  # it began in a kept state, because the REPL had ended before
    # Set by the REPL when it starts the cell
    cell_id: int = 0
    background: bytes = b""  # output between the previous cell and this one
    began: float = 0.0
    ladder: Ladder | None = None  # only if it has a deadline or was interrupted
    tool_records: ToolCallRecords | None = None  # only if it has called tools
