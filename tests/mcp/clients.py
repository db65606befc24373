"""Clients of the official SDK, over each transport, and the servers they talk to."""

from __future__ import annotations

import select
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, types
from mcp.client.stdio import stdio_client

from tests.cli.commands import COMMAND, environment

WAIT_SECONDS = 60
# The last one is of a client that insists on a version without sessions.
TRANSPORTS = ["stdio", "http", "http-without-sessions"]
_MODES = {
    "stdio": "auto",
    "stdio-handshake": "legacy",
    "http": "auto",
    "http-without-sessions": "2026-07-28",
}


class Talk:
    """A client that keeps to one sandbox, by session, or by naming it in each call where there are none."""

    def __init__(self, client: Client, names: bool) -> None:
        self.client = client
        self._names = names
        self.sandbox: str | None = None

    async def call(self, tool: str, /, progress: Any = None, **arguments: Any) -> types.CallToolResult:
        if self._names and self.sandbox is not None and "sandbox" not in arguments and tool != "create_sandbox":
            arguments["sandbox"] = self.sandbox
        made = await self.client.call_tool(tool, arguments, progress_callback=progress)
        if self.sandbox is None:
            self.sandbox = about(made).get("sandbox")
        return made

    async def text(self, tool: str, /, **arguments: Any) -> str:
        """What the model reads, if the call went well."""
        made = await self.call(tool, **arguments)
        assert not made.is_error, text_of(made)
        return text_of(made)

    async def structure(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """What a program reads, if the call went well."""
        made = await self.call(tool, **arguments)
        assert not made.is_error, text_of(made)
        assert isinstance(made.structured_content, dict)
        return made.structured_content


def text_of(made: types.CallToolResult) -> str:
    assert isinstance(made.content[0], types.TextContent)
    return made.content[0].text


def about(made: types.CallToolResult) -> dict[str, Any]:
    """What a program learns of a cell."""
    return dict((made.meta or {}).get("ramet", {}))


@asynccontextmanager
async def talking(transport: str, url: str | None, log: Path, *options: str) -> AsyncIterator[Talk]:
    """A client over this transport: of a server of its own, or of the one at the URL."""
    mode = _MODES[transport]
    if transport.startswith("http"):
        assert url is not None
        async with Client(url, mode=mode) as client:
            yield Talk(client, names=mode == "2026-07-28")
        return
    parameters = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "mcp", *options], env=environment())
    with log.open("a") as file:
        async with Client(stdio_client(parameters, errlog=file), mode=mode) as client:
            yield Talk(client, names=False)


class HttpServer:
    """``ramet mcp --http``, started as a user does."""

    def __init__(self, *options: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "mcp", "--http", "--port", "0", *options],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(**variables),
        )
        self.url = self._address()

    def _address(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        assert "http://" in line, "the server did not start"
        return line.split()[-1]

    def stop(self) -> int:
        """Graceful; gives the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def http_server(*options: str, **variables: str) -> Iterator[HttpServer]:
    server = HttpServer(*options, **variables)
    try:
        yield server
    finally:
        if server.process.returncode is None:
            server.stop()


def client_program(url: str | None, mode: str = "auto") -> str:
    """A program with a client that has a sandbox, in which a process and a cell run, and that waits for ever."""
    arguments = [*COMMAND[1:], "mcp"]
    server = f"StdioServerParameters(command={COMMAND[0]!r}, args={arguments!r}, env=dict(os.environ))"
    return f"""
        import asyncio, os, sys
        from mcp import Client, StdioServerParameters

        async def progress(count, total, message):
            print(message, end="", flush=True)

        async def main():
            async with Client({server if url is None else repr(url)}, mode={mode!r}) as client:
                code = (
                    "import subprocess, time\\n"
                    "subprocess.Popen(['sleep', '3600'], start_new_session=True)\\n"
                    "print('ready')\\n"
                    "time.sleep(3600)"
                )
                await client.call_tool("run_python", {{"code": code}}, progress_callback=progress)

        asyncio.run(main())
    """
