"""What goes on when a sandbox is copied or gets another body, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ramet.engine.network.held_secrets import Trace
from ramet.engine.seams import Body
from ramet.engine.terminals import Terminals
from ramet.protocol.tools import GivenTools


@dataclass(slots=True)
class Past:
    """What a copy of a sandbox has in common with it. Changed by each cell, so a copy gets a copy."""

    cells: int = 0  # begun
    spills: int = 0  # begun
    restarted: bool = False  # the namespace was lost and nobody has been told yet
    why_restarted: str = ""  # in words
    tools: GivenTools | None = None  # none were ever given
    variables: Mapping[str, str] = field(default_factory=dict)  # of a network, that its memory has; never changed
    commands: str | None = None  # the folder that comes first in PATH
    secrets: tuple[Trace, ...] = ()  # whose placeholders its memory may hold
    spilled_bytes: int = 0  # of its output that lies in its files, at most
    loss_told: bool = False  # the REPL was lost in a cell whose caller has heard of it

    def joined_by(self, other: Past) -> Past:
        """For a sandbox that goes on as the other one: numbers that were seen in either are not given again.

        It keeps its own tools: those who answer them are the same as before. One that never had any takes them away.
        """
        tools = self.tools
        if tools is None and other.tools is not None:
            tools = GivenTools(())
        return Past(
            max(self.cells, other.cells),
            max(self.spills, other.spills),
            other.restarted,
            other.why_restarted,
            tools,
            other.variables,
            other.commands,
            other.secrets,
            other.spilled_bytes,
            other.loss_told,
        )


class Retired:
    """A body that a sandbox has given up for another one. File calls that use it may end before it is closed.

    Terminals end at once: those of this body, and those of the sandbox whose body took its place.
    """

    def __init__(
        self, body: Body, terminals: Sequence[Terminals], calls: set[asyncio.Future[None]], seconds: float
    ) -> None:
        self._body = body
        self._terminals = terminals
        self._calls = calls
        self._seconds = seconds

    async def close(self) -> None:
        for terminals in self._terminals:
            await terminals.close()
        if self._calls:
            await asyncio.wait(self._calls, timeout=self._seconds)
        await self._body.close()
