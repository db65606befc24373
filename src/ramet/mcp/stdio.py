"""MCP over standard input and output: one client, which started this process and whose end ends it."""

from __future__ import annotations

import asyncio
import os
import signal

from mcp.server.stdio import stdio_server

from ramet.mcp.keeping import OneSession
from ramet.mcp.server import make_server
from ramet.mcp.sessions import SandboxSettings


def serve_stdio(settings: SandboxSettings) -> None:
    """Serve until the client closes our input."""
    asyncio.run(_serve(settings))


async def _serve(settings: SandboxSettings) -> None:
    keeping = OneSession(settings)
    server = make_server(keeping.running, reach=settings.reach)
    loop = asyncio.get_running_loop()
    endings: set[asyncio.Task[None]] = set()  # a loop does not keep its tasks

    def told_to_end(number: int) -> None:
        endings.add(loop.create_task(_end(keeping, number)))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told_to_end, number)
    # While it serves, descriptor 1 leads to standard error: nothing but the protocol gets to the client.
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _end(keeping: OneSession, number: int) -> None:
    """Close the sandboxes, and exit at once: a thread of the SDK waits for input and cannot be made to stop."""
    await keeping.close()
    os._exit(128 + number)
