"""A cell on its way through a sandbox, and where its output goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ramet.engine.ladder import Ladder
from ramet.errors import RametError
from ramet.protocol.calls import Outcome
from ramet.protocol.guest import Rich
from ramet.protocol.results import Truncated

if TYPE_CHECKING:
    from ramet.engine.tools.call import Answerer
    from ramet.engine.tools.records import Records


class Collected(NamedTuple):
    """What a sink kept for the result."""

    stdout: bytes = b""
    stderr: bytes = b""
    rich: tuple[Rich, ...] = ()
    truncated: Truncated | None = None


class Sink(Protocol):
    """Takes what a running cell prints and shows."""

    @property
    def live(self) -> bool:
        """Somebody waits for each piece: read the pipes at once."""

    def output(self, stream: int, data: bytes) -> None: ...

    def rich(self, rich: Rich) -> None: ...

    def full(self, when_room: Callable[[], None]) -> bool:
        """No more can be taken now. ``when_room`` is called once when that has changed."""

    def collect(self, then: Callable[[Collected], None]) -> None:
        """The cell has ended: hand over what was kept, at once if possible."""

    def abandon(self) -> None:
        """The caller went away, and the cell goes on: it must not wait for anybody to read."""

    def discard(self) -> None:
        """The cell will have no outcome: let go of everything."""


@dataclass(slots=True, eq=False)
class Cell:
    """One block of code, from the queue to its outcome. Exactly one of the two callbacks is made, once."""

    language: str
    code: bytes
    timeout_seconds: float | None
    sink: Sink
    on_outcome: Callable[[Outcome], None]
    on_error: Callable[[RametError], None]
    execution: str = ""  # its id, if it has one
    answerer: Answerer | None = None  # of its tool calls
    # The caller went away: nobody reads the outcome.
    abandoned: bool = False
    # Interrupted while a REPL was being prepared for it.
    interrupted: bool = False
    # From its start on, set by the REPL that runs it
    cell_id: int = 0
    background: bytes = b""  # what was printed before it began
    began: float = 0.0
    ladder: Ladder | None = None  # only if it has a deadline or was interrupted
    tool_records: Records | None = None  # only if it has called tools
