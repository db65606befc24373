"""AsyncTerminal: a program on a terminal in a sandbox, for programs on an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType

from ramet.client.drivers import asynchronous
from ramet.client.handle import closing_after
from ramet.client.operations.terminals import TerminalHandle
from ramet.errors import EngineClosed, EngineLost, ExecutionUnknown, SandboxClosed


class AsyncTerminal:
    """A program on a terminal of its own, beside the cells of its sandbox. Safe to use from several tasks.

    Every method but ``close`` raises ExecutionUnknown if the engine no longer knows the terminal.
    """

    def __init__(self, handle: TerminalHandle) -> None:
        self._terminal = handle
        self._engine = handle.sandbox.engine
        self.id = handle.id

    def __repr__(self) -> str:
        code = self._terminal.exit_code
        return f"<AsyncTerminal {self.id}{'' if code is None else f' ended {code}'}>"

    def read(self) -> AsyncGenerator[bytes, None]:
        """Yield output as it comes, until the program ends. A later call continues where the last one stopped.

        If output is not read in time, the last mebibyte of it is kept.
        """
        return asynchronous.iterate(self._engine, self._terminal.read())

    async def write(self, data: bytes | str) -> None:
        """Type input. Raises LimitReached if the program does not read it in time.

        Raises ExecutionUnknown if the program has ended, InvalidArgument for data that is neither bytes nor a string.
        """
        for piece in self._terminal.write(data):
            await asynchronous.perform(self._engine, piece)

    async def resize(self, cols: int, rows: int) -> None:
        """Change the size of the terminal; its program gets SIGWINCH. Raises InvalidArgument."""
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
        """Kill the program if it still runs. Closing twice, or after its sandbox, is allowed."""
        try:
            await self.kill()
        except (ExecutionUnknown, SandboxClosed, EngineLost, EngineClosed):
            pass

    async def __aenter__(self) -> AsyncTerminal:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing_after(error):
            await self.close()
