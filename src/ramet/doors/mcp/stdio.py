"""MCP over standard input and output: serves the one client that started this process, until it leaves."""

from __future__ import annotations

import asyncio
import os
import signal

from mcp.server.stdio import stdio_server

from ramet.doors.mcp.server import make_server
from ramet.doors.mcp.session_store import OneSession
from ramet.doors.mcp.sessions import SandboxSettings


def serve_stdio(settings: SandboxSettings) -> None:
    """Serve until the client closes our input."""
    asyncio.run(_serve(settings))


async def _serve(settings: SandboxSettings) -> None:
    keeping = OneSession(settings)
    server = make_server(keeping.running, reach=settings.reach)
    loop = asyncio.get_running_loop()
    endings: set[asyncio.Task[None]] = set()  # a loop holds its tasks weakly: without this one could be collected

    def told_to_end(number: int) -> None:
        endings.add(loop.create_task(_end(keeping, number)))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told_to_end, number)
    # The SDK points descriptor 1 at standard error while it serves: output of a library cannot break the protocol.
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _end(keeping: OneSession, number: int) -> None:
    """Close the sandboxes and exit at once. A normal exit would wait for a thread of the SDK that reads our input."""
    await keeping.close()
    os._exit(128 + number)
