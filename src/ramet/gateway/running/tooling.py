"""The client's tools, as functions that code in a container finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ramet import AsyncSandbox
from ramet.gateway.running.outcomes import ClientTool

Called = Callable[[str, dict[str, object]], Awaitable[str]]


class Tooling:
    """What a sandbox was last given. Belongs to one container; ``called`` answers for whatever runs there."""

    def __init__(self, called: Called, *, fresh: bool) -> None:
        self._called = called
        # None: not known, or given by the container that this one was copied from, whose calls are not ours.
        self._given: tuple[ClientTool, ...] | None = () if fresh else None

    def forget(self) -> None:
        """The sandbox is another one from now on."""
        self._given = None

    async def give(self, sandbox: AsyncSandbox, tools: Sequence[ClientTool], *, anew: bool = False) -> None:
        """Let the next cell have these tools and no others.

        ``anew``: also if it has them already. A tool whose name code has used for a value is callable again.
        """
        if self._given != tuple(tools) or (anew and tools):
            self._given = None
            await sandbox.set_tools([self._described(tool) for tool in tools])
            self._given = tuple(tools)

    def _described(self, tool: ClientTool) -> dict[str, object]:
        async def handler(**arguments: object) -> str:
            return await self._called(tool.name, arguments)

        return {
            "name": tool.name,
            "description": tool.description,
            "input_schema": dict(tool.input_schema),
            "handler": handler,
        }
