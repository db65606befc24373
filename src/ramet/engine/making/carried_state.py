"""State that goes on when a sandbox is copied or gets another body, and the body that is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import field

from ramet.engine.network.held_secrets import Trace
from ramet.engine.seams import Body
from ramet.engine.terminals.terminals import Terminals
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.tools.specs import GivenTools

_MEMORIES_AT_MOST = 64


@dataclass(slots=True)
class CarriedState:
    """What a copy has in common with its sandbox besides memory and files. Each cell changes it: a copy gets a copy."""

    cells: int = 0  # begun
    spills: int = 0  # begun
    restarted: bool = False  # the namespace was lost, and no result has said so yet
    why_restarted: str = ""  # in words
    tools: GivenTools | None = None  # none were ever given
    variables: Mapping[str, str] = field(default_factory=dict)  # of a network, that its memory has; never changed
    commands: str | None = None  # the folder that comes first in PATH
    secrets: tuple[Trace, ...] = ()  # whose placeholders its memory may hold
    spilled_bytes: int = 0  # of its output that lies in its files, at most
    loss_told: bool = False  # the REPL was lost in a cell whose result says so
    memory: object = field(default_factory=object)  # stands for the variables as they are: each cell makes another
    memories: tuple[object, ...] = ()  # of which there are copies, or which it was copied with

    def copied(self) -> None:
        """There is a copy of it, which has the same variables as yet."""
        if self.memory not in self.memories[-1:]:
            self.memories = (*self.memories[1 - _MEMORIES_AT_MOST :], self.memory)

    def changed(self) -> None:
        """Its variables may be others from now on."""
        self.memory = object()

    def joined_by(self, other: CarriedState) -> CarriedState:
        """The state of a sandbox that goes on with the other's body. Numbers used in either are not used again.

        It keeps its own tools, because the same client answers them as before. One that never had any removes them.
        """
        tools = self.tools
        if tools is None and other.tools is not None:
            tools = GivenTools(())
        return CarriedState(
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
            other.memory,
            other.memories,
        )


class RetiredBody:
    """A body that a sandbox has given up for another one. It is closed when the file calls that use it are over.

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
