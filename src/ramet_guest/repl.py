"""The guest's main loop: receive a frame, run the cell, answer. It runs one cell at a time, in the main thread."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet_guest import channel as frames
from ramet_guest import wire
from ramet_guest.cells import cell_loop, postmortem
from ramet_guest.cells.asynchronous import CellLoops
from ramet_guest.cells.compiling import Compiler, Program, refuse_bad_characters
from ramet_guest.cells.history import InputHistory
from ramet_guest.cells.interrupts import Interrupted, UserCodeGate
from ramet_guest.cells.rich import Publisher
from ramet_guest.cells.sources import Sources
from ramet_guest.cells.tracebacks import (
    ThreadReports,
    describe,
    format_error,
    last_resort,
    lower_recursion_limit_is_survivable,
)
from ramet_guest.channel import ControlChannel, GuestFrame
from ramet_guest.comparing import names
from ramet_guest.processes.commands import Processes
from ramet_guest.processes.output import Output
from ramet_guest.values.exchange import Values
from ramet_guest.waking import orphans, thawing

if TYPE_CHECKING:
    from ramet_guest.tools.given_tools import Tools
    from ramet_guest.tools.pending import Unmade

_exec = exec
_eval = eval
_getpid = os.getpid
_gettrace, _settrace = sys.gettrace, sys.settrace
_getprofile, _setprofile = sys.getprofile, sys.setprofile
_CO_COROUTINE = 0x80
_VALUE_KINDS = (
    wire.VALUE_GET,
    wire.VALUE_NEXT,
    wire.VALUE_SET,
    wire.VALUE_DROP,
    wire.VALUES_PACK,
    wire.VALUES_UNPACK,
    wire.VALUES_KEEP,
)
_INTERRUPTED_CODE = 130
_COMMAND_CHARACTERS = 200
# Python itself exits with 255 when `sys.exit` gets a number that does not fit a C long.
_LARGEST_EXIT, _TOO_LARGE_CODE = 2**63, 255
_BYTE_ORDER_MARK = "\ufeff"
_builtin_names: dict[str, Any] = vars(builtins)


class CommandFailed(SystemExit):
    """Raised when a program that a magic ran ended with a non-zero exit code. The cell ends with the same code."""

    def __init__(self, program: str, code: int) -> None:
        super().__init__(code)
        self.program = program

    def __str__(self) -> str:
        return f"{self.program} ended with exit code {self.code}"


class Hooks(NamedTuple):
    """The user's trace and profile functions, kept here while no cell runs."""

    trace: Any
    profile: Any


class Repl:
    """Owns the namespace and everything that a cell needs to run."""

    def __init__(self, channel: ControlChannel, output: Output, gate: UserCodeGate, shell: Any) -> None:
        self.channel = channel
        self.output = output
        self.gate = gate
        self.shell = shell
        self.namespace: dict[str, Any] = shell.user_ns
        self.sources = Sources()
        self.compiler = Compiler(shell, self.namespace, self.sources)
        self.history = shell.history = InputHistory(shell, self.namespace, self.sources)
        self.sources.on_dropped = self.history.drop_input
        self.loops = CellLoops(gate)
        cell_loop.install(self.loops.open, lambda: channel.fileno() == -1)
        self.processes = Processes(gate)
        self._callbacks: dict[str, list[Any]] = shell.events.callbacks
        # An error that a magic passed to the shell's error display instead of raising it.
        self._reported: BaseException | None = None
        self._error: dict[str, str] | None = None
        # The last `!command` of the running cell that failed.
        self._failed_command: CommandFailed | None = None
        self._hooks: Hooks | None = None
        # True in a template, and in a sandbox until its first frame.
        self.fresh = True
        # None unless the sandbox has tools.
        self.tools: Tools | None = None
        self.commands_folder: str | None = None
        self.values = Values(self)
        # The names that existed before the first cell.
        self.first_names = dict(self.namespace)
        self.builtins_kept = dict(_builtin_names)
        self._builtins_count = len(_builtin_names)
        self._publisher = shell.publisher = Publisher(channel, gate)
        ending_code: list[CodeType | None] = [None, Repl.run_program.__code__, Repl.await_program.__code__]
        shell.ending_code = self._ending_code = ending_code
        shell.show_error = self.report
        shell.run_nested = self.run_nested
        shell.run_command = self.processes.run_bash
        shell.command_failed = self.note_failed_command
        os.system = self.processes.system
        # An interrupt inside these would leave half a frame on the control socket, or a lock taken.
        gate.protect(
            ControlChannel.send,
            ControlChannel.publish,
            ControlChannel.done,
            ControlChannel.has_taken,
            ControlChannel._read_taken,
            Publisher._send,
        )
        gate.cell_waits = channel.readable
        threading.excepthook = ThreadReports(output.error_text)

    def serve(self) -> None:
        """Answers frames for ever."""
        while True:
            try:
                self.serve_one()
            except BaseException as error:
                # User code's own signal handler or trace function raised an exception into guest code. Reset the gate,
                # since the code that would have done so was skipped.
                self.gate.busy = self.gate.armed = self.gate.held = False
                self.show(error)

    def serve_one(self) -> None:
        if self.loops.loop is not None:
            self.loops.idle(self.channel, self.notice_new_process)
            self.notice_new_process()
        frame = self.channel.receive()
        # A thaw may have happened while we waited in `receive`; the process id shows it. Refresh before answering.
        if _getpid() != self.channel.pid:
            self.become_thawed()
        if frame.kind == wire.RUN:
            self.answer(frame)
        elif frame.kind == wire.TOOLS:
            self.give_tools(frame.header["socket"], frame.blob, frame.header.get("anew") is True)
        elif frame.kind == wire.CONFIGURE:
            self.configure(frame.header)
        elif frame.kind != wire.INTERRUPT:  # an INTERRUPT frame here belongs to a cell that is over
            self.answer_question(frame)

    def notice_new_process(self) -> None:
        """Checks whether background work was forked by `fork()` or frozen and thawed: both change the process id.

        Only a thaw also replaces the control socket. The copy made by `fork()` receives no frames, so it exits.
        """
        if _getpid() != self.channel.pid:
            if not self.channel.replaced():
                os._exit(0)
            self.become_thawed()

    def become_thawed(self) -> None:
        try:
            thawing.refresh(self)
        except Exception as error:
            # Show it, but go on: the engine waits for the answer to its next frame.
            self.show(error)

    def answer(self, frame: GuestFrame) -> None:
        """Runs a cell and reports how it ended."""
        header = frame.header
        gate = self.gate
        self.channel.begin(header["id"])
        self._error = self._reported = self._failed_command = None
        self._publisher.ended = False
        self._publisher.live = header.get("live") is True
        gate.begin()
        if self.channel.interrupt_waits():
            # The engine sends this frame before its signal. The signal may have arrived before `gate.begin`, which
            # drops earlier ones.
            gate.pending = KeyboardInterrupt
        try:
            self.output.mend()
            text = frame.blob.decode("utf-8", "surrogatepass")
            if text[:1] == _BYTE_ORDER_MARK:
                text = text[1:]
            code = self.run_bash(text) if header["language"] == "bash" else self.run_python(text)
        except BaseException as error:
            code = self.failed(error)
        fired = gate.fired  # read now: an interrupt during the next steps did not reach the cell
        try:
            if self.tools is not None and self.tools.unmade.calls:
                code = self.tell_unmade_calls(self.tools.unmade, code)
            self.tidy()
        except BaseException as error:
            code = self.failed(error)
        interrupted = self.was_interrupted(code, fired)
        if code == 0 and self._failed_command is not None:
            code, self._error = self.code_of(self._failed_command), describe(self._failed_command)
        # Before the answer: once the engine has it the cell is over, and a late signal must find our handler, which
        # drops it, and not one of the user's.
        gate.end()
        # `os.fork()` in a cell returns twice; only the parent may write to the control socket.
        self.leave_if_forked(code)
        self.channel.done(code, self._error, interrupted)

    def tell_unmade_calls(self, unmade: Unmade, code: int) -> int:
        """Makes the cell fail if it called a tool without the `await` that the tool needs: such a call was not made.

        Does not while tasks are left to run: they may still await the call.
        """
        error = unmade.take_error()
        if self.loops.has_tasks():
            return code
        if code == 0:
            return self.failed(error)
        self.output.cell_error(f"note: {error}\n")
        return code

    def was_interrupted(self, code: int, fired: bool) -> bool:
        """Whether an interrupt reached the code of the cell that is about to end. False if the cell ended with a value.

        True also for a cell that handled the interrupt itself. The engine knows whether it sent that interrupt.
        """
        if code == 0 and self.ended_with_value():
            return False
        return fired or (self.gate.user_handles() and self.channel.interrupt_waits())

    def ended_with_value(self) -> bool:
        return self._publisher.ended

    def configure(self, header: dict[str, Any]) -> None:
        problem = None
        try:
            thawing.configure(header.get("env"), header.get("cwd"), header.get("forget"), header.get("commands"))
        except (OSError, ValueError) as error:
            problem = str(error)[:1000]
        if self.tools is not None:
            # The new PATH may lack the folder of tool commands.
            self.tools.mend_path()
        self.channel.send(wire.CONFIGURED, frames.encode_header({"error": problem}))

    def give_tools(self, socket_name: str, told: bytes, anew: bool) -> None:
        """Sets the tools of the sandbox. `anew`: also restore those whose names cells have overwritten."""
        if self.tools is None:
            from ramet_guest.tools.given_tools import Tools

            self.tools = Tools(self, self.commands_folder)
        self.tools.give(socket_name, told)
        if anew:
            self.tools.put_back()

    def answer_question(self, frame: GuestFrame) -> None:
        """Answers a frame that is not a cell."""
        if frame.kind == wire.ASK_NAMES:
            names.answer(self, float(frame.header["seconds"]))
            self.leave_if_forked(0)
        elif frame.kind == wire.ASK_LOOPS:
            running = thawing.runs_loops(self)
            self.channel.send(wire.LOOPS, frames.encode_header({"running": running}))
        elif frame.kind == wire.WAKE:
            thawing.wake(self)
        elif frame.kind == wire.THAWED:
            problem = thawing.thawed(self, bool(frame.header["reseed"]), bool(frame.header["stir"]))
            self.channel.send(wire.CONFIGURED, frames.encode_header({"error": problem}))
        elif frame.kind in _VALUE_KINDS:
            self.values.answer(frame)
        # Ignore anything else: TAKEN and INTERRUPT frames of a cell that is over.

    # Cells

    def run_python(self, source: str) -> int:
        if not source or source.isspace():
            return 0  # IPython gives an empty cell no number either
        try:
            program = self.compiler.compile(source)
        except BaseException as error:
            self.history.store(self.sources.count, source, self.sources.latest)
            # The compiler's own frames are of no use to the user.
            return self.failed(error.with_traceback(None) if isinstance(error, SyntaxError) else error)
        self.history.store(self.sources.count, source, self.sources.latest)
        callbacks = self._callbacks
        if callbacks["pre_execute"] or callbacks["pre_run_cell"]:
            ended_by = self.gate.run(self.before_cell, source)
            if isinstance(ended_by, (KeyboardInterrupt, Interrupted)):
                code = self.failed(ended_by)
                ended_by = None
                return code
        self.namespace.pop("__warningregistry__", None)
        self._ending_code[0] = program.body if program.is_line else None
        ended_by = self.gate.run(self.run_program, program)
        trace, profile = _gettrace(), _getprofile()
        if trace is not None or profile is not None:
            # Suspend the user's trace and profile functions until the next cell, so that they see user code only. Do it
            # at once and in this frame, which began before they were set, so that trace functions do not see it. A
            # profiler in C (cProfile of Python 3.11) cannot be set again from here; it neither raises nor prints, and
            # stays.
            _settrace(None)
            if callable(profile):
                _setprofile(None)
            else:
                profile = None
            self._hooks = Hooks(trace, profile)
        if isinstance(ended_by, (KeyboardInterrupt, Interrupted)) and self.gate.fired and self.ended_with_value():
            # The interrupt arrived after the cell had shown its value: there was nothing left to interrupt.
            ended_by = None
            if self.gate.calm():
                self.loops.discard()
        code = 0
        if ended_by is not None or len(_builtin_names) != self._builtins_count:
            self.heal()
        if ended_by is not None:
            code = self.failed(ended_by)
        if callbacks["post_execute"] or callbacks["post_run_cell"]:
            ended_by = self.gate.run(self.after_cell)
            if ended_by is not None:
                code = self.failed(ended_by)
        if self._reported is not None and code == 0:
            code = self.code_of(self._reported)
        # The frames of the traceback lead back to this one. With the exception in a local variable here they would form
        # a cycle, and everything that the failed functions held would stay in memory until the next garbage collection.
        ended_by = None
        return code

    def run_program(self, program: Program) -> None:
        body, value, needs_loop, _ = program
        hooks = self._hooks
        if hooks is not None:
            # Inline, not in a helper: the user's trace functions would see a helper's frame.
            self._hooks = None
            if hooks.trace is not None:
                _settrace(hooks.trace)
            if hooks.profile is not None:
                _setprofile(hooks.profile)
        if needs_loop:
            self.loops.run(self.await_program(body, value))
            return
        if body is not None:
            _exec(body, self.namespace)
        if value is not None:
            result = _eval(value, self.namespace)
            if result is not None:
                sys.displayhook(result)

    async def await_program(self, body: CodeType | None, value: CodeType | None) -> None:
        """Runs a cell on the loop. Only code that contains `await` is a coroutine; the rest ran in `_eval`."""
        if body is not None:
            result = _eval(body, self.namespace)
            if body.co_flags & _CO_COROUTINE:
                await result
        if value is not None:
            result = _eval(value, self.namespace)
            if value.co_flags & _CO_COROUTINE:
                result = await result
            if result is not None:
                sys.displayhook(result)

    def run_whole(self, program: Program) -> None:
        """Runs a program that makes up its whole cell, such as a script: its last value is the cell's value."""
        self._ending_code[0] = program.body if program.is_line else None
        self.run_program(program)

    def run_nested(self, source: str) -> BaseException | None:
        """Runs code inside a running cell, for a magic. Shows its error, which makes the cell fail, and returns it."""
        try:
            self.run_program(self.compiler.compile(source, nested=True))
        except (KeyboardInterrupt, Interrupted):
            raise
        except BaseException as error:
            self.report(error)
            return error
        finally:
            # Its value was not the last thing that the cell does: an interrupt can still reach the rest.
            self._publisher.ended = False
        return None

    def before_cell(self, source: str) -> None:
        events = self.shell.events
        events.trigger("pre_execute")
        if self._callbacks["pre_run_cell"]:
            events.trigger("pre_run_cell", self.shell.execution_info(source))
        swallowed = self._reported
        if isinstance(swallowed, KeyboardInterrupt) and self.gate.fired:
            # IPython shows an exception of a callback and continues. An interrupt must end the cell nevertheless.
            self._reported = self._error = None
            raise swallowed

    def after_cell(self) -> None:
        events = self.shell.events
        events.trigger("post_execute")
        if self._callbacks["post_run_cell"]:
            events.trigger("post_run_cell", self.shell.execution_result())

    def run_bash(self, script: str) -> int:
        refuse_bad_characters(script, "the script")
        codes: list[int] = []
        ended_by = self.gate.run(lambda: codes.append(self.processes.run_bash(script)))
        code = codes[0] if ended_by is None else self.failed(ended_by)
        ended_by = None  # breaks the same cycle as in run_python
        return code

    # How cells end

    def failed(self, error: BaseException) -> int:
        """Shows the error that ended the cell; returns the cell's exit code."""
        # The interrupt was raised at arbitrary lines, so the loop may be in an inconsistent state.
        if self.gate.calm():
            self.loops.discard()
            # `redirect_stdout` did not reach the line that restores the stream.
            self.output.install()
        self.heal()
        # The cell is ending anyway: a deferred interrupt would hit the code that shows the error.
        self.gate.pending = None
        self._failed_command = None  # the error says more, and `sys.exit(0)` means success
        code = self.code_of(error)
        if isinstance(error, SystemExit):
            if error.code is not None and not isinstance(error.code, int):
                self.gate.run(lambda: self.output.cell_error(f"{error.code}\n"))
            if code == 0:
                return 0
        else:
            self.show(error)
        details: list[dict[str, str]] = []
        if self.gate.run(lambda: details.append(describe(error))) is not None:
            details = [{"name": type(error).__name__[:200], "message": ""}]
        self._error = details[0]
        # Through the gate: this releases the previous error, which may run the user's finalizers.
        self.gate.run(postmortem.remember, error)
        return code

    def code_of(self, error: BaseException) -> int:
        """Returns the exit code for an error, as Python's own: `sys.exit("text")` is 1, an interrupt is 130."""
        if isinstance(error, SystemExit):
            if error.code is None:
                return 0
            if not isinstance(error.code, int):
                return 1
            return int(error.code) & 255 if -_LARGEST_EXIT <= error.code < _LARGEST_EXIT else _TOO_LARGE_CODE
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            return _INTERRUPTED_CODE
        return 1

    def report(self, error: BaseException) -> None:
        """Shows an error that a magic caught. The caller is already inside the gate."""
        self._reported = error
        self._error = describe(error)
        self.output.cell_error(format_error(error))
        postmortem.remember(error)

    def note_failed_command(self, command: str, code: int) -> None:
        """Notes a failed `!command`. It raises nothing: the cell continues, but ends with the command's exit code."""
        self._failed_command = CommandFailed(f"!{command.strip()[:_COMMAND_CHARACTERS]}", code)

    def show(self, error: BaseException) -> None:
        """Writes the traceback to stderr, whatever state the interpreter is in."""
        texts: list[str] = []
        if self.gate.run(lambda: texts.append(format_error(error))) is not None:
            self.gate.calm()
            texts = [last_resort(error)]
        self.gate.run(lambda: self.output.cell_error(texts[0]))

    # Between cells

    def tidy(self) -> None:
        """Repairs what the cell changed in the interpreter. Streams that replaced ours stay, as in a notebook."""
        output = self.output
        if output.replaced():
            for name in ("stdout", "stderr"):
                self.gate.run(flush, getattr(sys, name, None))
            output.put_back_missing()
        if not hasattr(sys, "displayhook"):
            sys.displayhook = self.shell.displayhook
        output.stdout.flush()
        orphans.watch(self.channel)

    def heal(self) -> None:
        """Restores deleted builtins, which the standard library needs as much as we do."""
        kept = self.builtins_kept
        if not kept.keys() <= _builtin_names.keys():
            for name in kept.keys() - _builtin_names.keys():
                _builtin_names[name] = kept[name]
        self._builtins_count = len(_builtin_names)
        lower_recursion_limit_is_survivable()

    def leave_if_forked(self, code: int) -> None:
        """Exits if this process is a copy made by `os.fork()`: it ends with its cell and does not answer."""
        if _getpid() != self.channel.pid:
            os._exit(code)


def flush(stream: Any) -> None:
    if stream is not None:
        stream.flush()
