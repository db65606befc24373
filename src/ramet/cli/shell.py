"""ramet shell: a REPL in a sandbox."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from ramet.cli.networking import add_network_options, check_for_new, chosen_network
from ramet.cli.output import coloured, print_error, print_note, progress
from ramet.cli.place import add_server_option, chosen_url, find, keep
from ramet.cli.run import explain, write
from ramet.client.sandbox import Sandbox
from ramet.errors import InvalidArgument, RametError, SandboxClosed
from ramet.protocol.results import ExitEvent, OutputEvent, ResultEvent
from ramet.server.state import prepare, state_folder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from prompt_toolkit import PromptSession

_EXAMPLES = """\
examples:
  ramet shell                                 in a new sandbox, which ends with the shell
  ramet shell sbx_0f3a                        in a sandbox of a server, which stays
  ramet shell --template python-datasci
  ramet shell --network api.example           may reach this host, and nothing else
  ramet shell --network open                  all that is public
  export API_KEY=...; ramet shell --network api.example --secret API_KEY@api.example

keys: Tab completes names of the sandbox, Alt-Enter begins a new line, Ctrl-C interrupts the cell and keeps what it
made, Ctrl-D or `exit` leaves. `!command`, `%magics`, `name?` and top-level `await` work as in IPython.
"""

# A person thinks longer than a program: a new sandbox of a server waits for so long.
_IDLE_SECONDS = 3600.0
_LIFE_SECONDS = 24 * 3600.0
_PATIENT_INTERRUPTS = 3  # one more Ctrl-C gives the cell up
_HISTORY_NAME = "shell_history"
_WORDS_TO_LEAVE = ("exit", "quit", "exit()", "quit()")


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "shell",
        help="a REPL in a sandbox",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_option(parser, "a sandbox of this command")
    parser.add_argument("sandbox", nargs="?", metavar="SANDBOX", help="its id, or the beginning of it")
    parser.add_argument("--template", help="of a new sandbox (default: default)")
    add_network_options(parser)
    parser.add_argument("--keep", action="store_true", help="do not close a new sandbox of a server when leaving")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with _sandbox(chosen) as sandbox:
        if not sys.stdin.isatty():
            return run_cell(sandbox, sys.stdin.read())
        _converse(sandbox, stays=chosen.sandbox is not None or chosen.keep)
    return 0


@contextmanager
def _sandbox(chosen: argparse.Namespace) -> Iterator[Sandbox]:
    url = chosen_url(chosen)
    if url is None and (chosen.sandbox is not None or chosen.keep):
        raise InvalidArgument("sandbox: only a server has sandboxes that stay", hint="name it with --url or RAMET_URL")
    if url is not None and chosen.sandbox is not None:
        check_for_new(chosen)
        yield find(url, chosen.sandbox)
        return
    network, secrets = chosen_network(chosen)
    with progress("starting a sandbox"):
        sandbox = Sandbox(
            chosen.template or "default",
            network=network,
            secrets=secrets,
            url=url,
            timeout_seconds=None if url is None else _LIFE_SECONDS,
            idle_timeout_seconds=None if url is None else _IDLE_SECONDS,
        )
    if chosen.keep:
        keep(sandbox)
        yield sandbox
    else:
        with sandbox:
            yield sandbox


def _converse(sandbox: Sandbox, stays: bool) -> None:
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
            return
        if code.strip() in _WORDS_TO_LEAVE:
            return
        if not code.strip():
            continue
        try:
            run_cell(sandbox, code)
        except SandboxClosed as error:
            print_error(error)
            return
        except RametError as error:
            print_error(error)


def _session(sandbox: Sandbox) -> PromptSession[str]:
    # Imported here: a third of a second that no other command needs.
    from IPython.core.inputtransformer2 import TransformerManager
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.lexers import PygmentsLexer
    from prompt_toolkit.output import ColorDepth
    from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

    from ramet.cli.completing import SandboxCompleter

    history: History = InMemoryHistory()
    with suppress(RametError):  # no folder, no memory
        folder = state_folder()
        prepare(folder)
        history = FileHistory(str(folder / _HISTORY_NAME))
    bindings = KeyBindings()
    transformer = TransformerManager()  # type: ignore[no-untyped-call]

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        """Runs what is complete; what is not goes on in the next line, with its indentation."""
        buffer = event.current_buffer
        document = buffer.document
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # Enter in the menu takes the word
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


def run_cell(sandbox: Sandbox, code: str) -> int:
    """Shows what a cell prints as it comes, and its value. Ctrl-C interrupts the cell, not us."""
    ended_with = "\n"
    with _interrupting(sandbox):
        for event in sandbox.run_code_stream(code):
            if isinstance(event, OutputEvent):
                ended_with = event.data or ended_with
                _show(event)
            elif isinstance(event, ResultEvent) and event.result.text is not None:
                write(sys.stdout, f"{event.result.text}\n")
            elif isinstance(event, ExitEvent):
                if sys.stdout.isatty() and not ended_with.endswith("\n"):
                    write(sys.stdout, "\n")
                explain(event.result)
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
    """SIGINT asks the engine to interrupt the cell. That is a call, and made by a thread: a handler must not block."""
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
