"""AsyncTerminal: a program on a terminal in a sandbox, for programs with an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType

from ramet.client import asynchronous
from ramet.client.handle import behind
from ramet.client.terminal_operations import TerminalHandle
from ramet.errors import EngineClosed, EngineLost, ExecutionUnknown, SandboxClosed


class AsyncTerminal:
    """A program on a terminal of its own, beside the cells of its sandbox."""

    def __init__(self, handle: TerminalHandle) -> None:
        self._terminal = handle
        self._engine = handle.sandbox.engine
        self.id = handle.id

    def __repr__(self) -> str:
        code = self._terminal.exit_code
        return f"<AsyncTerminal {self.id}{'' if code is None else f' ended {code}'}>"

    def read(self) -> AsyncGenerator[bytes, None]:
        """Yield output as it comes, until the program ends. A later call continues where the last one stopped.

        Of output that is not read in time, the last mebibyte is kept.
        """
        return asynchronous.iterate(self._engine, self._terminal.read())

    async def write(self, data: bytes | str) -> None:
        """Type input. Waits a while if the program does not read, then raises LimitReached."""
        for piece in self._terminal.write(data):
            await asynchronous.perform(self._engine, piece)

    async def resize(self, cols: int, rows: int) -> None:
        """Change the size of the terminal; its program gets SIGWINCH."""
        await asynchronous.perform(self._engine, self._terminal.resize(cols, rows))

    async def kill(self) -> None:
        """End all processes of the terminal: SIGHUP, a second later SIGKILL. Calling it twice is allowed."""
        await asynchronous.perform(self._engine, self._terminal.kill())

    async def wait(self) -> int:
        """Wait until the program ends. Returns its exit code, or 128 + n after signal n."""
        while (code := await asynchronous.perform(self._engine, self._terminal.poll(wait=True))) is None:
            pass
        return code

    async def close(self) -> None:
        """Kill what still runs. A terminal that has already ended, or whose sandbox has, is allowed."""
        try:
            await self.kill()
        except (ExecutionUnknown, SandboxClosed, EngineLost, EngineClosed):
            pass

    async def __aenter__(self) -> AsyncTerminal:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            await self.close()
