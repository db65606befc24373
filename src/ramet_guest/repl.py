"""The loop of the guest: wait for a frame, run the cell, answer. One cell at a time, in the main thread."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from types import CodeType
from typing import TYPE_CHECKING, Any

from ramet_guest import channel as frames
from ramet_guest import naming, thawing
from ramet_guest.asynchronous import Loops
from ramet_guest.channel import Channel, Frame
from ramet_guest.compiling import Compiler, Program
from ramet_guest.interrupts import Gate, Interrupted
from ramet_guest.output import Output
from ramet_guest.processes import Processes
from ramet_guest.rich import Publisher
from ramet_guest.sources import Sources
from ramet_guest.tracebacks import (
    ThreadReports,
    describe,
    format_error,
    last_resort,
    lower_recursion_limit_is_survivable,
)

if TYPE_CHECKING:
    from ramet_guest.tools import Tools

_exec = exec
_eval = eval
_getpid = os.getpid
_CO_COROUTINE = 0x80
_INTERRUPTED_CODE = 130
_builtin_names: dict[str, Any] = vars(builtins)


class CommandFailed(SystemExit):
    """A program that a magic ran ended with a non-zero code; the cell ends with the same."""

    def __init__(self, program: str, code: int) -> None:
        super().__init__(code)
        self.program = program

    def __str__(self) -> str:
        return f"{self.program} ended with exit code {self.code}"


class Repl:
    """Owns the namespace and everything a cell needs to run."""

    def __init__(self, channel: Channel, output: Output, gate: Gate, shell: Any) -> None:
        self.channel = channel
        self.output = output
        self.gate = gate
        self.shell = shell
        self.namespace: dict[str, Any] = shell.user_ns
        self.sources = Sources()
        self.compiler = Compiler(shell, self.namespace, self.sources)
        self.loops = Loops(gate)
        self.processes = Processes(gate)
        self._callbacks: dict[str, list[Any]] = shell.events.callbacks
        # What a magic reported through the shell instead of raising it.
        self._reported: BaseException | None = None
        self._error: dict[str, str] | None = None
        self._interrupted = False
        # In a template, and in a sandbox until its first frame.
        self.fresh = True
        # Of a sandbox that was given some.
        self.tools: Tools | None = None
        self.commands_folder: str | None = None
        # Names that were there before any cell.
        self.first_names = dict(self.namespace)
        self.builtins_kept = dict(_builtin_names)
        self._builtins_count = len(_builtin_names)
        shell.publisher = Publisher(channel, gate)
        ending_code: list[CodeType | None] = [None, Repl.run_program.__code__, Repl.await_program.__code__]
        shell.ending_code = self._ending_code = ending_code
        shell.show_error = self.report
        shell.run_nested = self.run_nested
        shell.run_command = self.processes.run_bash
        os.system = self.processes.system
        gate.protect(Channel.send, Channel.publish, Channel.done)
        gate.cell_waits = channel.readable
        threading.excepthook = ThreadReports(output.error_text)

    def serve(self) -> None:
        """Answers frames for ever."""
        while True:
            try:
                self.serve_one()
            except BaseException as error:
                # A user's own signal handler or trace function raised into guest code.
                self.gate.busy = self.gate.armed = self.gate.held = False
                self.show(error)

    def serve_one(self) -> None:
        if self.loops.loop is not None:
            self.loops.idle(self.channel)
            self.leave_if_forked(0)
        frame = self.channel.receive()
        pid = _getpid()
        if pid != self.channel.pid:
            self.channel.pid = pid
            try:
                thawing.refresh(self)
            except Exception as error:
                # The frame must be answered all the same.
                self.show(error)
        if frame.kind == frames.RUN:
            self.answer(frame)
        elif frame.kind == frames.TOOLS:
            self.give_tools(frame.header["socket"], frame.blob)
        elif frame.kind == frames.CONFIGURE:
            self.configure(frame.header)
        else:
            self.answer_question(frame)

    def answer(self, frame: Frame) -> None:
        """Runs a cell and says how it ended."""
        header = frame.header
        gate = self.gate
        self.channel.cell = header["id"]
        self._error = self._reported = None
        self._interrupted = False
        gate.begin()
        try:
            self.output.mend()
            text = frame.blob.decode("utf-8", "surrogateescape")
            code = self.run_bash(text) if header["language"] == "bash" else self.run_python(text)
        except BaseException as error:
            code = self.failed(error)
        try:
            self.tidy()
        except BaseException as error:
            code = self.failed(error)
        gate.end()
        self.leave_if_forked(code)
        self.channel.done(code, self._error, self._interrupted)

    def configure(self, header: dict[str, Any]) -> None:
        problem = None
        try:
            thawing.configure(header.get("env"), header.get("cwd"), header.get("forget"), header.get("commands"))
        except (OSError, ValueError) as error:
            problem = str(error)
        if self.tools is not None:
            self.tools.mend_path()
        self.channel.send(frames.CONFIGURED, frames.encode_header({"error": problem}))

    def give_tools(self, socket_name: str, told: bytes) -> None:
        if self.tools is None:
            from ramet_guest.tools import Tools

            self.tools = Tools(self, self.commands_folder)
        self.tools.give(socket_name, told)

    def answer_question(self, frame: Frame) -> None:
        """What is asked around forks, none of it by a cell."""
        if frame.kind == frames.ASK_NAMES:
            naming.answer(self, float(frame.header["seconds"]))
            self.leave_if_forked(0)
        elif frame.kind == frames.ASK_LOOPS:
            running = thawing.runs_loops(self)
            self.channel.send(frames.LOOPS, frames.encode_header({"running": running}))
        elif frame.kind == frames.WAKE:
            thawing.wake(self)
        elif frame.kind == frames.THAWED:
            problem = thawing.thawed(self, bool(frame.header["reseed"]), bool(frame.header["stir"]))
            self.channel.send(frames.CONFIGURED, frames.encode_header({"error": problem}))

    # Cells

    def run_python(self, source: str) -> int:
        try:
            program = self.compiler.compile(source)
        except BaseException as error:
            # The compiler's own frames say nothing to the user.
            return self.failed(error.with_traceback(None) if isinstance(error, SyntaxError) else error)
        callbacks = self._callbacks
        if callbacks["pre_execute"] or callbacks["pre_run_cell"]:
            self.gate.run(self.before_cell, source)
        self.namespace.pop("__warningregistry__", None)
        self._ending_code[0] = program.body if program.is_line else None
        ended_by = self.gate.run(self.run_program, program)
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
        return code

    def run_program(self, program: Program) -> None:
        body, value, needs_loop, _ = program
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

    def run_nested(self, source: str) -> BaseException | None:
        """Runs code inside a running cell, for a magic. Its error is shown and makes the cell fail."""
        try:
            self.run_program(self.compiler.compile(source))
        except (KeyboardInterrupt, Interrupted):
            raise
        except BaseException as error:
            self.report(error)
            return error
        return None

    def before_cell(self, source: str) -> None:
        events = self.shell.events
        events.trigger("pre_execute")
        if self._callbacks["pre_run_cell"]:
            events.trigger("pre_run_cell", self.shell.execution_info(source))

    def after_cell(self) -> None:
        events = self.shell.events
        events.trigger("post_execute")
        if self._callbacks["post_run_cell"]:
            events.trigger("post_run_cell", self.shell.execution_result())

    def run_bash(self, script: str) -> int:
        codes: list[int] = []
        ended_by = self.gate.run(lambda: codes.append(self.processes.run_bash(script)))
        return codes[0] if ended_by is None else self.failed(ended_by)

    # How cells end

    def failed(self, error: BaseException) -> int:
        """Shows what ended the cell; returns its exit code."""
        if self.gate.calm():
            self.loops.discard()
        self.heal()
        self.gate.pending = None
        code = self.code_of(error)
        if isinstance(error, SystemExit):
            if error.code is not None and not isinstance(error.code, int):
                self.gate.run(lambda: self.output.error_text(f"{error.code}\n"))
            if code == 0:
                return 0
        else:
            self.show(error)
        details: list[dict[str, str]] = []
        if self.gate.run(lambda: details.append(describe(error))) is not None:
            details = [{"name": type(error).__name__, "message": ""}]
        self._error = details[0]
        return code

    def code_of(self, error: BaseException) -> int:
        if isinstance(error, SystemExit):
            if error.code is None:
                return 0
            return int(error.code) & 255 if isinstance(error.code, int) else 1
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            self._interrupted = self.gate.fired
            return _INTERRUPTED_CODE
        return 1

    def report(self, error: BaseException) -> None:
        """Shows an error that a magic caught. Already inside the gate."""
        self._reported = error
        self._error = describe(error)
        self.output.error_text(format_error(error))

    def show(self, error: BaseException) -> None:
        """Writes the traceback to stderr, whatever state the interpreter is in."""
        texts: list[str] = []
        if self.gate.run(lambda: texts.append(format_error(error))) is not None:
            self.gate.calm()
            texts = [last_resort(error)]
        self.gate.run(lambda: self.output.error_text(texts[0]))

    # Between cells

    def tidy(self) -> None:
        """Takes back what the cell changed under us."""
        output = self.output
        if output.replaced():
            for name in ("stdout", "stderr"):
                self.gate.run(flush, getattr(sys, name, None))
            output.install()
        if not hasattr(sys, "displayhook"):
            sys.displayhook = self.shell.displayhook
        output.stdout.flush()
        if sys.gettrace() is not None:
            sys.settrace(None)
        if sys.getprofile() is not None:
            sys.setprofile(None)

    def heal(self) -> None:
        """Puts deleted builtins back: the standard library needs them as much as we do."""
        kept = self.builtins_kept
        if not kept.keys() <= _builtin_names.keys():
            for name in kept.keys() - _builtin_names.keys():
                _builtin_names[name] = kept[name]
        self._builtins_count = len(_builtin_names)
        lower_recursion_limit_is_survivable()

    def leave_if_forked(self, code: int) -> None:
        """A copy of the REPL made by `os.fork()` ends with its cell and does not answer."""
        if _getpid() != self.channel.pid:
            os._exit(code)


def flush(stream: Any) -> None:
    if stream is not None:
        stream.flush()
