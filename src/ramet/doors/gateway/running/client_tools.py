"""The client's tools, as functions for code in a container."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ramet import AsyncSandbox
from ramet.doors.gateway.running.outcomes import ClientTool

Called = Callable[[str, dict[str, object]], Awaitable[str]]


class ClientTools:
    """The tools that a sandbox was last given. Belongs to one container; ``called`` handles the calls of its code."""

    def __init__(self, called: Called, *, fresh: bool) -> None:
        self._called = called
        # None: unknown, or given by the container that this one was forked from, whose handler is not ours.
        self._given: tuple[ClientTool, ...] | None = () if fresh else None

    def forget(self) -> None:
        """Note that the sandbox is a new one."""
        self._given = None

    async def give(self, sandbox: AsyncSandbox, tools: Sequence[ClientTool], *, anew: bool = False) -> None:
        """Give these tools, and no others, to the next cell.

        ``anew``: even if it has them already. This restores a tool whose name code has used for a variable.
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
