"""ramet shell: open a REPL in a sandbox."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from ramet.cli.local.outcomes import clear_line, write
from ramet.cli.local.output_folder import OutputFolder, tell_of_plots
from ramet.cli.output import coloured, print_error, print_note, progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, chosen_url, find, keep
from ramet.cli.sandbox_ids import completes
from ramet.cli.sandbox_options import add_sandbox_options, check_exists, make_sandbox
from ramet.client.blocking.sandbox import Sandbox
from ramet.doors.http.state import prepare
from ramet.errors import InvalidArgument, RametError, SandboxClosed
from ramet.protocol.values.results import ClearEvent, ExitEvent, OutputEvent, ResultEvent
from ramet.web.state_folder import state_folder

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_EXAMPLES = """\
examples:
  ramet shell                                 in a new sandbox, which ends with the shell
  ramet shell sbx_0f3a                        in a sandbox of a server, which stays
  ramet shell --template python-datasci --output out
                                              plots are saved in ./out
  ramet shell --mount ./data:/data            files of ./data can be read in /data
  ramet shell --network api.example           may reach this host, and nothing else
  ramet shell --network open                  all that is public
  export API_KEY=...; ramet shell --network api.example --secret API_KEY@api.example

keys: Tab completes names of the sandbox, Alt-Enter begins a new line, Ctrl-C interrupts the cell and keeps what it
made, Ctrl-D or `exit` leaves. `!command`, `%magics`, `name?` and top-level `await` work as in IPython.
"""

# A person thinks longer than a program, so a new sandbox at a server waits this long.
_LIFETIME = {"timeout_seconds": 24 * 3600.0, "idle_timeout_seconds": 3600.0}
_PATIENT_INTERRUPTS = 3  # one more Ctrl-C abandons the cell
_HISTORY_NAME = "shell_history"
_SANDBOX_ENDED = -1
_WORDS_TO_LEAVE = ("exit", "quit", "exit()", "quit()")


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "shell", "open a REPL in a sandbox", __doc__, _EXAMPLES)
    add_server_option(parser, "a sandbox of this command")
    completes(
        parser.add_argument(
            "sandbox", nargs="?", metavar="SANDBOX", help="sandbox of a server: its id, or the beginning of it"
        )
    )
    add_sandbox_options(parser, "shell")
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="save plots as they are made, and files of the working folder when leaving, in this new or empty folder",
    )
    parser.add_argument("--keep", action="store_true", help="do not close a new sandbox of a server when leaving")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    output = None if chosen.output is None else OutputFolder(chosen.output)
    with _sandbox(chosen) as sandbox:
        if output is not None:
            output.begin(sandbox)
        if not sys.stdin.isatty():
            code = run_cell(sandbox, sys.stdin.read(), output)
        else:
            code = _converse(sandbox, chosen.sandbox is not None or chosen.keep, output)
        if output is not None and code != _SANDBOX_ENDED:
            output.end(sandbox)
            output.tell()
    return 1 if code == _SANDBOX_ENDED else code


@contextmanager
def _sandbox(chosen: argparse.Namespace) -> Iterator[Sandbox]:
    """Yield the sandbox of the session: one of a server, a new one that is kept, or one that ends with the session."""
    url = chosen_url(chosen)
    if url is None and (chosen.sandbox is not None or chosen.keep):
        raise InvalidArgument("only a server has sandboxes that stay", hint="name it with --url or RAMET_URL")
    if url is not None and chosen.sandbox is not None:
        check_exists(chosen)
        yield find(url, chosen.sandbox)
        return
    with progress("starting a sandbox"):
        sandbox = make_sandbox(chosen, url, more=None if url is None else _LIFETIME)
    if chosen.keep:
        keep(sandbox)
        yield sandbox
    else:
        with sandbox:
            yield sandbox


def _converse(sandbox: Sandbox, stays: bool, output: OutputFolder | None) -> int:
    """Run the prompt until the user leaves, or until the sandbox has ended. Return the exit code."""
    info = sandbox.info()
    after = "it stays when you leave" if stays else "it ends when you leave"
    print_note(f"Sandbox {sandbox.id}, {info.template}, {info.python}. Ctrl-D leaves; {after}.")
    session = _session(sandbox)
    while True:
        try:
            code = session.prompt(">>> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        if code.strip() in _WORDS_TO_LEAVE:
            return 0
        if not code.strip():
            continue
        try:
            run_cell(sandbox, code, output)
        except SandboxClosed as error:
            print_error(error)
            return _SANDBOX_ENDED
        except RametError as error:
            print_error(error)


def _session(sandbox: Sandbox) -> PromptSession[str]:
    # Imported here: it takes a third of a second, which no other command needs.
    from IPython.core.inputtransformer2 import TransformerManager
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.lexers import PygmentsLexer
    from prompt_toolkit.output import ColorDepth
    from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

    from ramet.cli.local.name_completion import SandboxCompleter

    history: History = InMemoryHistory()
    with suppress(RametError):  # without a state folder there is no history
        folder = state_folder()
        prepare(folder)
        history = FileHistory(str(folder / _HISTORY_NAME))
    bindings = KeyBindings()
    transformer = TransformerManager()  # type: ignore[no-untyped-call]

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        """Run a complete input; continue an incomplete one on the next line, with its indentation."""
        buffer = event.current_buffer
        document = buffer.document
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # Enter in the menu accepts the word
            return
        if not document.on_last_line and document.text_after_cursor.strip():
            buffer.newline(copy_margin=True)
            return
        state, indentation = transformer.check_complete(document.text)
        if state == "incomplete":
            buffer.insert_text("\n" + " " * (indentation or 0))
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    return PromptSession(
        history=history,
        multiline=True,
        prompt_continuation="... ",
        key_bindings=bindings,
        completer=SandboxCompleter(sandbox),
        complete_while_typing=False,
        complete_in_thread=True,
        lexer=PygmentsLexer(PythonLexer),
        color_depth=None if coloured(sys.stdout) else ColorDepth.DEPTH_1_BIT,
    )


def run_cell(sandbox: Sandbox, code: str, output: OutputFolder | None = None) -> int:
    """Show what a cell prints as it arrives, and its value. Ctrl-C interrupts the cell, not us."""
    ended_with = "\n"
    with _interrupting(sandbox):
        for event in sandbox.run_code_stream(code):
            if isinstance(event, OutputEvent):
                ended_with = event.data or ended_with
                _show(event)
            elif isinstance(event, ResultEvent):
                if event.result.text is not None:
                    write(sys.stdout, f"{event.result.text}\n")
                if output is None:
                    tell_of_plots(event.result)
                elif (path := output.save_plot(event.result)) is not None:
                    print_note(f"ramet: saved {path}")
            elif isinstance(event, ClearEvent):
                clear_line()
            elif isinstance(event, ExitEvent):
                if sys.stdout.isatty() and not ended_with.endswith("\n"):
                    write(sys.stdout, "\n")
                return event.code
    return 0


def _show(event: OutputEvent) -> None:
    stream = sys.stdout if event.type == "stdout" else sys.stderr
    if event.type == "stderr" and coloured(sys.stderr):
        from pygments import highlight  # type: ignore[import-untyped]
        from pygments.formatters import TerminalFormatter  # type: ignore[import-untyped]
        from pygments.lexers.python import PythonTracebackLexer

        lexer = PythonTracebackLexer(stripnl=False, ensurenl=False)
        write(stream, highlight(event.data, lexer, TerminalFormatter()))
    else:
        write(stream, event.data)


@contextmanager
def _interrupting(sandbox: Sandbox) -> Iterator[None]:
    """Interrupt the cell on SIGINT.

    That is a call to the engine, and a signal handler must not block, so a thread makes it.
    """
    asked = 0

    def ask() -> None:
        with suppress(RametError):
            sandbox.interrupt()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked > _PATIENT_INTERRUPTS:
            raise KeyboardInterrupt
        threading.Thread(target=ask, daemon=True).start()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print_note("ramet: gave the cell up")
    finally:
        signal.signal(signal.SIGINT, before)
