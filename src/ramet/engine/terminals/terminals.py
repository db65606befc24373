"""The terminals of a sandbox, and the calls about them."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ramet.engine.frame_channel import FrameChannel
from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.engine.terminals.terminal import Terminal
from ramet.errors import ExecutionUnknown, LimitReached, ProtocolError, SandboxClosed
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import Frame
from ramet.protocol.values.terminals import (
    READ_BYTES_AT_MOST,
    READ_SECONDS_AT_MOST,
    TERMINALS_AT_MOST,
    check_arguments,
    check_input,
    check_size,
)

if TYPE_CHECKING:
    from ramet.engine.cells.sandbox import Sandbox

_LABEL_CHARACTERS = 200


class Terminals:
    """The terminals of one body. Calls ``touch`` when one is used. Keeps ended ones until others need their place."""

    def __init__(self, body: Body, settings: Settings, touch: Callable[[], None]) -> None:
        self._body = body
        self._settings = settings
        self._touch = touch
        self._terminals: dict[str, Terminal] = {}
        self._opening = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<Terminals {list(self._terminals.values())}>"

    @property
    def attached(self) -> int:
        """The number of clients that are attached to a terminal or are opening one."""
        return self._opening + sum(terminal.attached for terminal in self._terminals.values())

    def find(self, terminal_id: str) -> Terminal:
        """The terminal of this id. Raises ExecutionUnknown."""
        terminal = self._terminals.get(terminal_id)
        if terminal is None:
            raise ExecutionUnknown(
                f"there is no terminal {terminal_id!r:.80} in this sandbox; it may have ended",
                details={"terminal": terminal_id[:80]},
            )
        return terminal

    def list(self) -> list[dict[str, object]]:
        return [terminal.info() for terminal in self._terminals.values()]

    async def open(
        self,
        arguments: tuple[str, ...],
        variables: Mapping[str, str],
        folder: str | None,
        columns: int,
        rows: int,
        commands: str | None = None,
    ) -> Terminal:
        """Start a program in a new terminal. Raises LimitReached, SandboxClosed, or the error of the pod."""
        self._make_room()
        # Counted while the await below runs: calls at the same time would otherwise all find room for one more.
        self._opening += 1
        try:
            session = await self._body.open_terminal(arguments, variables, folder, columns, rows, commands)
        finally:
            self._opening -= 1
        label = shlex.join(arguments)[:_LABEL_CHARACTERS]
        terminal = Terminal(f"pty_{secrets.token_hex(8)}", label, session, self._settings)
        if self._closed:  # close() ran during the await above and could not know of this terminal
            await terminal.end(hang_up=False)
            raise SandboxClosed("the terminal ended because its sandbox was closed or replaced")
        self._terminals[terminal.id] = terminal
        return terminal

    def _make_room(self) -> None:
        if self._closed:
            raise SandboxClosed("cannot open a terminal: the sandbox was closed or replaced")
        ended = [terminal.id for terminal in self._terminals.values() if terminal.exit_code is not None]
        if len(self._terminals) - len(ended) + self._opening >= TERMINALS_AT_MOST:
            raise LimitReached(
                f"the sandbox has {TERMINALS_AT_MOST} terminals, which is the limit",
                hint="end one, or use another sandbox",
            )
        while len(self._terminals) + self._opening >= TERMINALS_AT_MOST:
            del self._terminals[ended.pop(0)]  # the oldest; a client that is attached still reads it to its end

    async def close(self) -> None:
        """End all terminals. Attached clients get their exit codes."""
        self._closed = True  # first: a terminal that is being opened sees it and ends itself
        running = (terminal.end(hang_up=False) for terminal in self._terminals.values())
        await asyncio.gather(*running, return_exceptions=True)  # a process that is left ends with the body

    # Calls

    async def serve(self, frame: Frame, sandbox: Sandbox, channel: FrameChannel) -> dict[str, object]:
        """Serve one call and return its answer. Counts as use of the sandbox at its beginning and at its end."""
        header = frame.header
        self._touch()
        if frame.kind in (calls.TERMINAL_OPEN, calls.TERMINAL_INPUT):
            sandbox.touched()
        try:
            if frame.kind == calls.TERMINAL_OPEN:
                return await self._open(header, sandbox, channel)
            if frame.kind == calls.TERMINAL_LIST:
                return {"terminals": self.list()}
            return await self._use(self.find(fields.text(header, "terminal")), frame, channel)
        finally:
            self._touch()

    async def _open(self, header: Mapping[str, object], sandbox: Sandbox, channel: FrameChannel) -> dict[str, object]:
        arguments = check_arguments(fields.array(header, "argv"))
        given = fields.text_mapping(header, "env")
        checks.check_environment(given)
        folder = fields.optional_text(header, "cwd")
        if folder is not None:
            checks.check_path(folder, "cwd")
            folder = folder if folder.startswith("/") else f"/root/{folder}"
        columns, rows = check_size(header.get("cols"), header.get("rows"))
        variables = {**await sandbox.environment(), **given}
        terminal = await self.open(arguments, variables, folder or sandbox.spec.cwd, columns, rows, sandbox.commands)
        if channel.detached:
            await terminal.end(hang_up=False)  # the client has disconnected and does not know the id
        return {"terminal": terminal.id}

    async def _use(self, terminal: Terminal, frame: Frame, channel: FrameChannel) -> dict[str, object]:
        header = frame.header
        if frame.kind == calls.TERMINAL_ATTACH:
            return {"exit_code": await terminal.attach(channel, fields.optional_whole(header, "since"))}
        if frame.kind == calls.TERMINAL_READ:
            at_most_bytes = min(fields.natural(header, "max_bytes"), READ_BYTES_AT_MOST)
            seconds = min(fields.natural(header, "timeout_ms") / 1000, READ_SECONDS_AT_MOST)
            return await terminal.read(channel, fields.natural(header, "since"), at_most_bytes, seconds)
        if frame.kind == calls.TERMINAL_INPUT:
            check_input(len(frame.blob))
            await terminal.write(frame.blob)
        elif frame.kind == calls.TERMINAL_RESIZE:
            terminal.resize(*check_size(header.get("cols"), header.get("rows")))
        elif frame.kind == calls.TERMINAL_KILL:
            # Shielded: ending takes several steps, and a client that disconnects must not stop them half-way.
            await asyncio.shield(asyncio.ensure_future(terminal.end()))
        else:
            raise ProtocolError(f"a request of unknown kind {frame.kind}")
        return {}


async def begin(frame: Frame, sandbox: Sandbox, channel: FrameChannel, settings: Settings) -> dict[str, object]:
    """Serve one call and return its answer."""
    return await sandbox.terminals.serve(frame, sandbox, channel)
