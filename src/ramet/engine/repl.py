"""Drives one REPL over its control socket and pipes, from its thaw to its death. Trusts nothing it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

from ramet.engine.attention import expect_news
from ramet.engine.cell import Cell
from ramet.engine.channel import Channel
from ramet.engine.ladder import Ladder
from ramet.engine.pipes import Pipes
from ramet.engine.replay import Replay
from ramet.engine.seams import Body, Death
from ramet.engine.settings import Settings
from ramet.errors import InvalidArgument, ProtocolError, SandboxLost
from ramet.protocol import guest
from ramet.protocol.bounding import Tail
from ramet.protocol.frames import FROM_GUEST, Frame
from ramet.protocol.results import CellError

BROKEN_PROTOCOL = "broken protocol"

Answer = TypeVar("Answer", guest.Configured, guest.Loops, guest.Names)


class Ending(NamedTuple):
    """How a cell ended."""

    exit_code: int
    state: Literal["kept", "lost"]
    cause: str | None
    error: CellError | None
    interrupted: bool
    duration_seconds: float


class Repl:
    """One life of a sandbox's REPL. Runs one cell or answers one question at a time; after its death it is thrown away.

    ``fresh``: thawed from a template, and was sent nothing yet. Its first frame has it draw random numbers of its own.
    """

    def __init__(
        self,
        body: Body,
        settings: Settings,
        background: Tail,
        replay: Replay,
        on_end: Callable[[Cell, Ending], None],
        fresh: bool = True,
    ) -> None:
        self._body = body
        self._settings = settings
        self._background = background
        # Both change when another sandbox goes on with this REPL.
        self.replay = replay
        self.on_cell_end = on_end
        self.fresh = fresh
        self._loop = asyncio.get_running_loop()
        self._running: Cell | None = None
        self._held = False
        self._last_id = 0
        self._broken = False
        self._question: tuple[type[guest.Message], asyncio.Future[Any]] | None = None
        self._told_tools: tuple[str, bytes] | None = None  # where they are called, and what they are
        self.alive = True
        self._channel = Channel(body.control, FROM_GUEST, self._on_frame, self._on_end_of_control)
        self._pipes = Pipes(body.stdout, body.stderr, settings.quiet_seconds, self._on_output)
        self._pipes.watch()
        death = body.death
        death.add_done_callback(lambda _: self._on_death(death.result()))

    async def configure(
        self,
        environment: Mapping[str, str],
        cwd: str | None,
        forget: Mapping[str, str] | None = None,
        commands: str | None = None,
    ) -> None:
        """Give the REPL its environment and folder, before its first cell or between two; see ``guest.configure``."""
        if not environment and not forget and cwd is None and commands is None:
            return
        error = await self._told(guest.configure(environment, cwd, forget, commands))
        if error is not None:
            allowed = "allowed: a folder that exists in the sandbox"
            raise InvalidArgument(f"cwd: {error:.1000}", hint=allowed, details={"argument": "cwd"})

    async def settle(self) -> None:
        """Have a fresh REPL draw its own random numbers before copies are made of it: they would draw others."""
        if self.fresh:
            await self._told(guest.configure({}, None))

    async def thawed(self, reseed: bool, stir: bool) -> None:
        """Tell the copy of a sandbox what it has become."""
        error = await self._told(guest.thawed(reseed, stir))
        if error is not None:
            raise SandboxLost(f"the copy of a sandbox could not be told what it is: {error:.1000}")

    async def runs_loops(self) -> bool:
        """Whether a thread in there runs an asyncio loop."""
        answer = await self._ask(guest.ask_loops(), guest.Loops)
        return answer.running

    async def names(self) -> guest.Names:
        """The names of its namespace. Runs user code (``__repr__``), which is interrupted after a while like a cell.

        It is never killed for this: a value that cannot be described is no reason to lose all others.
        """
        settings = self._settings
        answer = self._send(guest.ask_names(settings.names_seconds), guest.Names)
        ladder = Ladder(self._body, settings, kill=False)
        ladder.begin_after(settings.names_interrupt_seconds)
        try:
            # Not given up by a timeout: when the answer comes late after all, somebody has to expect it.
            await asyncio.wait([answer], timeout=settings.names_at_most_seconds)
        finally:
            ladder.stop()
        if not answer.done():
            raise SandboxLost(
                "the REPL did not tell its names: the repr or the pickling of some value does not end",
                hint="run a cell with a timeout: that ends what keeps it, if need be with the REPL",
            )
        return answer.result()

    @property
    def asked(self) -> bool:
        """A question has not been answered yet, though nobody may wait for it any more."""
        return self._question is not None

    async def _told(self, frame: bytes) -> str | None:
        return (await self._ask(frame, guest.Configured)).error

    async def _ask(self, frame: bytes, kind: type[Answer]) -> Answer:
        """Ask between two cells, and wait for the answer; a REPL that gives none is of no use any more."""
        answer = self._send(frame, kind)
        try:
            async with asyncio.timeout(self._settings.configure_seconds):
                return await answer
        except TimeoutError:
            self._break()
            raise SandboxLost("the REPL did not answer in time, and was ended") from None

    def _send(self, frame: bytes, kind: type[Answer]) -> asyncio.Future[Answer]:
        if not self.alive or self._question is not None:
            raise SandboxLost("the REPL has ended" if not self.alive else "the REPL is still busy with its last answer")
        self.fresh = False
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._question = (kind, answer)
        self._channel.send(frame)
        return answer

    def run(self, cell: Cell, cell_id: int) -> None:
        """Start a cell. How it ended, whatever way, is told to ``on_end``."""
        self._pipes.take_what_is_there()
        self._running = cell
        self.fresh = False
        self._last_id = cell.cell_id = cell_id
        cell.began = perf_counter()
        self._channel.send(guest.run(cell_id, cell.language, cell.code))
        # The guest is at work from here on; the rest costs the caller nothing.
        expect_news()
        cell.background = self._background.take()
        if cell.sink.live:
            self._pipes.watch()
        else:
            self._pipes.rest()
        if cell.timeout_seconds is not None:
            self._ladder(cell).begin_after(cell.timeout_seconds)

    def tell_tools(self, socket_name: str, encoded: bytes) -> None:
        """What the cells to come may call, if this REPL does not know it already."""
        if self._told_tools != (socket_name, encoded):
            self._told_tools = (socket_name, encoded)
            self._channel.send(guest.tools(socket_name, encoded))

    def take_output(self) -> None:
        """Read what was printed until now."""
        self._pipes.take_what_is_there()

    def interrupt(self) -> bool:
        """Interrupt the running cell. False if none runs."""
        if self._running is None:
            return False
        self._ladder(self._running).begin("interrupt")
        return True

    def _ladder(self, cell: Cell) -> Ladder:
        if cell.ladder is None:
            cell.ladder = Ladder(self._body, self._settings)
        return cell.ladder

    def detach(self) -> None:
        """Let go of the body's descriptors, which are about to be closed."""
        self.alive = False
        self._give_up_question("the sandbox was closed")
        self._channel.detach()
        self._pipes.detach()
        if self._running is not None:
            if self._running.ladder is not None:
                self._running.ladder.stop()
            self._running = None

    # What comes from the guest

    def _on_frame(self, frame: Frame) -> None:
        message = guest.read(frame)  # a ProtocolError goes to the channel, which ends with it
        if isinstance(message, guest.Configured | guest.Loops | guest.Names):
            if self._question is None or type(message) is not self._question[0]:
                raise ProtocolError("an answer to a question that nobody asked")
            (_, answer), self._question = self._question, None
            if not answer.done():
                answer.set_result(message)
            return
        running = self._running
        if running is None or message.cell_id != running.cell_id:
            # What a cell that is over still says changes nothing for anybody. A cell that has not begun says nothing.
            if message.cell_id > self._last_id or message.cell_id <= 0:
                raise ProtocolError(f"a frame for cell {message.cell_id}, which was never started")
            return
        if isinstance(message, guest.Rich):
            if running.sink.live:
                # What was printed before it is in the pipes already, and whoever watches sees it first.
                self._pipes.take_what_is_there()
            running.sink.rich(message)
            self._hold_if_full(running)
            return
        self._pipes.take_what_is_there()
        cause = running.ladder.cause if running.ladder is not None else None
        if message.interrupted and cause is None:
            cause = "interrupt"
        seconds = perf_counter() - running.began
        self._finish(running, Ending(message.exit_code, "kept", cause, message.error, cause is not None, seconds))

    def _on_output(self, stream: int, data: bytes) -> None:
        running = self._running
        if running is None:
            self._background.add(data)
            self.replay.printed(stream, data, "")
            return
        self.replay.printed(stream, data, running.execution)
        running.sink.output(stream, data)
        self._hold_if_full(running)

    def _hold_if_full(self, running: Cell) -> None:
        if running.sink.full(self._go_on):
            self._held = True
            self._pipes.hold()
            self._channel.pause()

    def _go_on(self) -> None:
        if self._held and self.alive:
            self._held = False
            self._pipes.release()
            self._channel.resume()

    # The end, of a cell and of the REPL

    def _finish(self, running: Cell, ending: Ending) -> None:
        self._running = None
        if running.ladder is not None:
            running.ladder.stop()
        self._go_on()
        self.on_cell_end(running, ending)
        expect_news()
        if self.alive and self._running is None:
            self._pipes.rest()

    def _on_end_of_control(self, error: ProtocolError | None) -> None:
        if error is not None:
            self._break()
            return
        # A process that ends closes its descriptors a moment before its death can be seen. Only if no death follows
        # did user code close the control socket; killing at once would make a lie of the cause.
        self._loop.call_later(self._settings.end_of_control_seconds, self._break_if_alive)

    def _break_if_alive(self) -> None:
        if self.alive and not self._body.death.done():
            self._break()

    def _break(self) -> None:
        self._broken = True
        self._channel.detach()
        self._body.kill()

    def _on_death(self, death: Death) -> None:
        if not self.alive:
            return
        # The last words first: a cell that ended before the process did has a result like any other.
        self.alive = False
        self._channel.drain()
        self._pipes.take_what_is_there()
        running = self._running
        self._give_up_question("the REPL ended before it had answered")
        self._channel.detach()
        self._pipes.detach()
        if running is not None:
            exit_code, cause = self._verdict(death, running.ladder)
            interrupted = running.ladder is not None and running.ladder.cause is not None
            seconds = perf_counter() - running.began
            self._finish(running, Ending(exit_code, "lost", cause, None, interrupted, seconds))

    def _give_up_question(self, why: str) -> None:
        if self._question is not None:
            (_, answer), self._question = self._question, None
            if not answer.done():
                answer.set_exception(SandboxLost(why))
                answer.exception()  # retrieved: whoever asked may have left

    def _verdict(self, death: Death, ladder: Ladder | None) -> tuple[int, str]:
        if death.signal is None:
            return (death.exit_code or 0), "exit"
        exit_code = 128 + death.signal
        if death.out_of_memory:
            return exit_code, "out of memory"
        if self._broken:
            return exit_code, BROKEN_PROTOCOL
        if ladder is not None and ladder.cause is not None and death.signal in ladder.sent:
            return exit_code, ladder.cause
        return exit_code, f"signal {death.signal}"
