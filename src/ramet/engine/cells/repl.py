"""Drives one REPL over its control socket and pipes, from its thaw to its death. Trusts none of its frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from ramet.engine.busy_selector import expect_message
from ramet.engine.cells import repl_endings
from ramet.engine.cells.cell import Cell
from ramet.engine.cells.interrupt_ladder import Ladder
from ramet.engine.cells.pipes import STDERR, Pipes
from ramet.engine.cells.rate_limit import RateLimit
from ramet.engine.frame_channel import FrameChannel
from ramet.engine.output.replay import Replay
from ramet.engine.seams import Body, Death
from ramet.engine.settings import Settings
from ramet.errors import InvalidArgument, ProtocolError, SandboxLost
from ramet.protocol import guest
from ramet.protocol.bounded_bytes import Tail
from ramet.protocol.frames import FROM_GUEST, Frame
from ramet.protocol.values.results import CellError, State

BROKEN_PROTOCOL = "broken protocol"
_FRAME_BYTES = 128  # a guess of the cost of a frame besides its header, in bytes of a header
_NAME_BYTES_AT_ONCE = 64 * 1024
_UNREAD_BYTES = 64 * 1024  # a guest that does not read its acknowledgements gets no more of them

Answer = TypeVar("Answer", guest.Configured, guest.Loops, guest.NamesTold, guest.ValueTold)


class Ending(NamedTuple):
    """How a cell ended."""

    exit_code: int
    state: State
    cause: str | None
    error: CellError | None
    interrupted: bool
    duration_seconds: float


class Repl:
    """One life of a sandbox's REPL. Runs one cell or answers one question at a time; discarded after its death.

    ``fresh``: it was thawed from a template and has received nothing yet. Its first frame makes it draw random numbers
    of its own.
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
        # A merge changes both: then another sandbox continues with this REPL.
        self.replay = replay
        self.on_cell_end = on_end
        self.fresh = fresh
        self._loop = asyncio.get_running_loop()
        self._running: Cell | None = None
        # Two independent reasons not to read: the sink is full (`_held`), or the guest talks too fast (`_resting`).
        # Reading resumes when neither holds.
        self._held = False
        self._meter = RateLimit(settings.guest_header_bytes, settings.guest_header_bytes_per_second)
        self._resting = False
        self._last_id = 0
        self._broken = False
        self._silent = False  # it was killed because it did not answer
        self._question: tuple[type[guest.Message], asyncio.Future[Any]] | None = None
        self._told_tools: tuple[str, bytes] | None = None  # the name of the tool socket and the tools it knows
        self._tools_anew = False  # tools were given since the last cell began
        self.alive = True
        self.why_ended = ""  # the reason in words, once it has ended
        self._in_line = False  # the last output of the running cell on stderr ended in the middle of a line
        self._channel = FrameChannel(body.control, FROM_GUEST, self._on_frame, self._on_end_of_control)
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
        """Set environment and folder of the REPL between two cells; see ``guest.configure``.

        Raises InvalidArgument if the folder does not exist, SandboxLost if the REPL does not answer.
        """
        if not environment and not forget and cwd is None and commands is None:
            return
        error = await self._told(guest.configure(environment, cwd, forget, commands))
        if error is not None:
            message = f"cwd must be a folder that exists in the sandbox: {error:.1000}"
            raise InvalidArgument(message, details={"argument": "cwd"})

    async def settle(self) -> None:
        """Make a fresh REPL draw its random numbers before it is copied. Otherwise each copy would draw its own, and
        copies would differ from their parent. Raises SandboxLost.
        """
        if self.fresh:
            await self._told(guest.configure({}, None))

    async def thawed(self, reseed: bool, stir: bool) -> None:
        """Tell the REPL that it is a copy. Raises SandboxLost."""
        error = await self._told(guest.thawed(reseed, stir))
        if error is not None:
            raise SandboxLost(f"the copy of a sandbox could not be set up: {error:.1000}")

    async def runs_loops(self, seconds: float | None = None) -> bool:
        """Whether a thread of the REPL runs an asyncio loop. Raises SandboxLost.

        ``seconds``: a REPL that has not answered by then is left alone. Without, one that does not answer is ended.
        """
        if seconds is None:
            answer = self._ask_loops_again() if self.asked_loops else self._send(guest.ask_loops(), guest.Loops)
            return (await self._answered(answer)).running
        answer = self._send(guest.ask_loops(), guest.Loops)
        await asyncio.wait([answer], timeout=seconds)  # which does not cancel it: a late answer needs its question
        if not answer.done():
            raise SandboxLost("the REPL is busy and did not answer")
        return answer.result().running

    async def names(self) -> guest.GuestNames:
        """List the names of its namespace. Runs user code (``__repr__``), which is interrupted after a while.

        Never kills the REPL: one value that cannot be described must not cost all others. Raises SandboxLost if the
        code does not end.
        """
        settings = self._settings
        answer = self._send(guest.ask_names(settings.names_seconds), guest.NamesTold)
        ladder = Ladder(self._body, settings, kill=False)
        ladder.begin_after(settings.names_interrupt_seconds)
        try:
            # asyncio.wait, because a timeout must not cancel the future: a late answer would then find no question, and
            # count as a broken protocol. `asked` stays true until it comes.
            await asyncio.wait([answer], timeout=settings.names_at_most_seconds)
        finally:
            ladder.stop()
        if not answer.done():
            raise SandboxLost(
                "the REPL did not list its names: the repr or the pickling of some value does not end",
                hint="run a cell with a timeout; it ends the listing, and the REPL too if necessary",
            )
        return await self._decode_names(answer.result())

    async def value(self, frame: bytes) -> guest.ValueTold:
        """Ask for a part of a value, or give one. May run code of libraries and of the user in the REPL.

        That code is interrupted after a while, or when the caller is cancelled. Never kills the REPL. Raises
        SandboxLost if the code does not end.
        """
        settings = self._settings
        answer = self._send(frame, guest.ValueTold)
        ladder = Ladder(self._body, settings, kill=False)
        ladder.begin_after(settings.value_seconds)
        try:
            await asyncio.wait([answer], timeout=settings.value_seconds + settings.value_interrupt_seconds)
        except asyncio.CancelledError:
            # Wait for the REPL before the caller's turn in the queue ends: the next in the queue may be a fork, which
            # would freeze a REPL in the middle of this.
            ladder.stop()
            ladder.begin("interrupt")
            await asyncio.wait([answer], timeout=settings.value_interrupt_seconds)
            raise
        finally:
            ladder.stop()
        if not answer.done():
            raise SandboxLost(
                "the REPL did not hand over the value: the code of its type does not end",
                hint="run a cell with a timeout: that ends what keeps it, if need be with the REPL",
            )
        return answer.result()

    def drop_value(self) -> None:
        """Tell the REPL to drop the rest of a value, because its receiver has gone."""
        if self.alive:
            self._channel.send(guest.drop_value())

    async def _decode_names(self, told: guest.NamesTold) -> guest.GuestNames:
        """Decode the list in slices and yield in between: it may have megabytes, and the loop serves all sandboxes."""
        names: dict[str, guest.Named] = {}
        decoded_bytes = 0
        try:
            for line in told.lines:
                name, named = guest.read_name(line)
                names[name] = named
                decoded_bytes += len(line)
                if decoded_bytes > _NAME_BYTES_AT_ONCE:
                    decoded_bytes = 0
                    await asyncio.sleep(0)
        except ProtocolError:
            self._break()
            raise SandboxLost("the REPL sent an invalid list of names and was ended") from None
        return guest.GuestNames(names, told.omitted)

    @property
    def asked_loops(self) -> bool:
        """Whether that question is ``runs_loops``, which whoever comes next can wait for as well."""
        return self._question is not None and self._question[0] is guest.Loops

    def _ask_loops_again(self) -> asyncio.Future[guest.Loops]:
        """The answer to the open question, for another caller: the one before has given up."""
        answer: asyncio.Future[guest.Loops] = self._loop.create_future()
        self._question = (guest.Loops, answer)
        return answer

    @property
    def asked(self) -> bool:
        """Whether a question has no answer yet, even if its caller has given up."""
        return self._question is not None

    async def _told(self, frame: bytes) -> str | None:
        return (await self._ask(frame, guest.Configured)).error

    async def _ask(self, frame: bytes, kind: type[Answer]) -> Answer:
        """Ask between two cells and wait for the answer. Kills a REPL that gives none, and raises SandboxLost."""
        return await self._answered(self._send(frame, kind))

    async def _answered(self, answer: asyncio.Future[Answer]) -> Answer:
        try:
            async with asyncio.timeout(self._settings.configure_seconds):
                return await answer
        except TimeoutError:
            self._silent = True
            self._break()
            raise SandboxLost("the REPL did not answer in time and was ended") from None

    def _send(self, frame: bytes, kind: type[Answer]) -> asyncio.Future[Answer]:
        if not self.alive or self._question is not None:
            raise SandboxLost("the REPL has ended" if not self.alive else "the REPL is still busy with its last answer")
        self.fresh = False
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._question = (kind, answer)
        self._channel.send(frame)
        return answer

    def run(self, cell: Cell, cell_id: int) -> None:
        """Start a cell. ``on_cell_end`` is called once, however the cell ends."""
        # Before the cell is sent: what is in the pipes now was printed between cells and is not its output.
        self._pipes.take_what_is_there()
        self._running = cell
        self._in_line = False
        self.fresh = False
        self._last_id = cell.cell_id = cell_id
        cell.began = perf_counter()
        self._channel.send(guest.run(cell_id, cell.language, cell.code, cell.sink.live))
        # The guest works from here on: the rest of this function runs beside it.
        expect_message()
        cell.background = self._background.take()
        if cell.sink.live:
            self._pipes.watch()
        else:
            self._pipes.rest()
        if cell.timeout_seconds is not None:
            self._ladder(cell).begin_after(cell.timeout_seconds)

    def tell_tools(self, socket_name: str, encoded: bytes) -> None:
        """Send the tools of the next cells, unless the REPL knows them already."""
        if self._told_tools != (socket_name, encoded) or self._tools_anew:
            self._told_tools = (socket_name, encoded)
            self._channel.send(guest.tools(socket_name, encoded, self._tools_anew))
            self._tools_anew = False

    def tell_tools_anew(self) -> None:
        """The owner has given tools again: send them before the next cell even if the REPL knows them, because code may
        have replaced their names.
        """
        self._tools_anew = True

    def take_output(self) -> None:
        """Read what has been printed until now."""
        self._pipes.take_what_is_there()

    def interrupt(self) -> bool:
        """Interrupt the running cell. False if none runs."""
        if self._running is None:
            return False
        self._ladder(self._running).begin("interrupt")
        return True

    def _ladder(self, cell: Cell) -> Ladder:
        if cell.ladder is None:
            announcement = guest.interrupt(cell.cell_id)
            cell.ladder = Ladder(self._body, self._settings, announce=lambda: self._channel.send(announcement))
        return cell.ladder

    def detach(self) -> None:
        """Stop using the body's descriptors, which are about to be closed. ``on_cell_end`` is not called any more."""
        self.alive = False
        self._give_up_question("the sandbox was closed")
        self._channel.detach()
        self._pipes.detach()
        if self._running is not None:
            if self._running.ladder is not None:
                self._running.ladder.stop()
            self._running = None

    # Frames and output of the guest

    def _on_frame(self, frame: Frame) -> None:
        wait_seconds = self._meter.spend(frame.header_bytes + _FRAME_BYTES)
        if wait_seconds:
            self._rest(wait_seconds)
        message = guest.read(frame)  # the channel catches a ProtocolError, and ends with it
        if isinstance(message, guest.Configured | guest.Loops | guest.NamesTold | guest.ValueTold):
            if self._question is None or type(message) is not self._question[0]:
                raise ProtocolError("an answer to a question that nobody asked")
            (_, answer), self._question = self._question, None
            if not answer.done():  # else the caller was cancelled
                answer.set_result(message)
            return
        running = self._running
        if running is None or message.cell_id != running.cell_id:
            # A thread of an earlier cell may still display something: ignored. A cell that has not begun says nothing.
            if message.cell_id > self._last_id or message.cell_id <= 0:
                raise ProtocolError(f"a frame for cell {message.cell_id}, which was never started")
            return
        if isinstance(message, guest.Rich):
            if running.sink.live or message.what == "clear":
                # Output and displays come through different descriptors. The guest flushes before it displays, so what
                # it printed before is in the pipes already: reading it first keeps the order of the cell.
                self._pipes.take_what_is_there()
            running.sink.rich(message)
            self._hold_if_full(running)
            if message.number and self._channel.unsent_bytes < _UNREAD_BYTES:
                # The guest waits for this acknowledgement, so what it prints next comes behind the display.
                self._channel.send(guest.taken(message.number))
            return
        # The guest has flushed before it said "done": all output of the cell is in the pipes, and nothing of the next.
        self._pipes.take_what_is_there()
        cause = self._cause(message, running.ladder)
        seconds = perf_counter() - running.began
        self._finish(running, Ending(message.exit_code, "kept", cause, message.error, cause is not None, seconds))

    @staticmethod
    def _cause(done: guest.Done, ladder: Ladder | None) -> str | None:
        """Why the cell was interrupted. None if it was not, or if the interrupt came too late."""
        if not done.interrupted:
            return None
        if ladder is not None and ladder.cause is not None:
            return ladder.cause
        # The code sent itself a signal. If it handled that, the cell was not interrupted.
        return "interrupt" if done.exit_code != 0 else None

    def _on_output(self, stream: int, data: bytes) -> None:
        running = self._running
        if running is None:
            self._background.add(data)
            self.replay.printed(stream, data, "")
            return
        if stream == STDERR:
            self._in_line = not data.endswith(b"\n")
        self.replay.printed(stream, data, running.execution)
        running.sink.output(stream, data)
        self._hold_if_full(running)

    def note(self, sentence: str) -> None:
        """Add a message to the running cell's stderr, where people and models read it."""
        if self._running is not None:
            self.note_for(self._running, sentence)

    def note_for(self, cell: Cell, sentence: str) -> None:
        """Add a message to the stderr of a cell that runs, or in which the REPL has just ended."""
        line = repl_endings.as_output(sentence).encode()
        data = b"\n" + line if self._in_line else line
        self._in_line = False
        self.replay.printed(STDERR, data, cell.execution)
        cell.sink.output(STDERR, data)

    def _hold_if_full(self, running: Cell) -> None:
        if running.sink.full(self._go_on):
            self._held = True
            self._pipes.hold()
            self._channel.pause()

    def _go_on(self) -> None:
        if self._held and self.alive:
            self._held = False
            self._pipes.release()
            if not self._resting:
                self._channel.resume()

    def _rest(self, seconds: float) -> None:
        """Read no frames for some seconds. Once the socket is full, the guest blocks in its own write."""
        self._channel.pause()
        if not self._resting:
            self._resting = True
            self._loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = False
        if self.alive and not self._held:
            self._channel.resume()

    # The end of a cell, and of the REPL

    def _finish(self, running: Cell, ending: Ending) -> None:
        self._running = None
        if running.ladder is not None:
            running.ladder.stop()
        self._go_on()
        self.on_cell_end(running, ending)
        expect_message()
        if self.alive and self._running is None:  # the callback may have started the next cell already
            self._pipes.rest()

    def _on_end_of_control(self, error: ProtocolError | None) -> None:
        if error is not None:
            self._break()
            return
        # A process that exits closes its descriptors a moment before its death is reported. Only if no death follows
        # has user code closed the control socket. Killing at once would replace the true cause by our signal.
        self._loop.call_later(self._settings.end_of_control_seconds, self._break_if_alive)

    def _break_if_alive(self) -> None:
        if not self.alive or self._body.death.done():
            return
        # A cell that is being interrupted is ended by the ladder, which knows the cause. On a busy machine this timer
        # may fire together with the ladder's, before the ladder's signal has had its effect.
        interrupting = self._running is not None and self._running.ladder is not None and self._running.ladder.cause
        if not interrupting:
            self._break()

    def _break(self) -> None:
        self._broken = True
        self._channel.detach()
        self._body.kill()

    def _on_death(self, death: Death) -> None:
        if not self.alive:
            return
        # Read what it still sent before it died: a cell that ended before the process has an ordinary result.
        # `alive` is false first, so that its callbacks start nothing in this REPL.
        self.alive = False
        self._channel.drain()
        self._pipes.take_what_is_there()
        running = self._running
        exit_code, cause = self._verdict(death, running.ladder if running is not None else None)
        self.why_ended = repl_endings.NO_ANSWER if self._silent else repl_endings.why(cause, exit_code)
        self._give_up_question("the REPL ended before it had answered")
        self._channel.detach()
        self._pipes.detach()
        if running is not None:
            error = repl_endings.lost(self.why_ended)
            interrupted = running.ladder is not None and running.ladder.cause is not None
            seconds = perf_counter() - running.began
            self._finish(running, Ending(exit_code, "lost", cause, error, interrupted, seconds))

    def _give_up_question(self, why: str) -> None:
        if self._question is not None:
            (_, answer), self._question = self._question, None
            if not answer.done():
                answer.set_exception(SandboxLost(why))
                # Mark the exception as retrieved: the caller may have been cancelled, and asyncio would complain.
                answer.exception()

    def _verdict(self, death: Death, ladder: Ladder | None) -> tuple[int, str]:
        """The exit code and the cause of a death. Several may apply; the order of the checks is that of blame."""
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
