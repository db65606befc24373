"""ramet run: a script in a sandbox, as if it ran here: its output, its exit code."""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from ramet.cli.networking import add_network_options, check_for_new, chosen_network
from ramet.cli.output import print_error, print_note, progress, show_progress, size
from ramet.cli.place import add_server_option, chosen_url, find, keep
from ramet.client.sandbox import Sandbox
from ramet.errors import InvalidArgument, RametError
from ramet.protocol.results import ExitEvent, OutputEvent, Result, ResultEvent

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet run script.py --its-own-option        options of the script come after it
  ramet run -c 'print(6 * 7)'                 the value of a last expression is printed too
  echo 'print(1)' | ramet run -
  ramet run --language bash -c 'ls -l'
  ramet run --upload data.csv --timeout 60 analysis.py
  ramet run --network api.example --network '*.data.example:443' fetch.py
  export API_KEY=...; ramet run --network api.example --secret API_KEY@api.example fetch.py
                                              the script sees a placeholder in API_KEY, the host gets the value
  ramet run --network open -c '!pip install rich'
  ramet run --keep -c 'x = 1'                 at a server: prints the id of the sandbox, which stays
  ramet run --sandbox sbx_0f3a -c 'x + 1'     in a sandbox that exists
  ramet run --json -c '6 * 7' | jq .value

Without --url or RAMET_URL the sandbox is made by this command, on this machine, and ends with it.

exit code: the script's own; 130 after Ctrl-C; 125 when the sandbox failed and not the script.
"""

FAILED = 125
INTERRUPTED = 130
_MISUSED = 2
_TERMINATED = 128 + signal.SIGTERM
_PIECE_BYTES = 1024 * 1024


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="run a script in a sandbox",
        usage="ramet run [options] (SCRIPT | - | -c CODE) [ARGUMENTS ...]",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_option(parser, "a sandbox of this command")
    parser.add_argument("-c", "--code", help="the code itself")
    parser.add_argument("--language", choices=("python", "bash"), default="python", help="of the code")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="interrupt it after so long")
    parser.add_argument("--sandbox", metavar="ID", help="run in this sandbox, which stays")
    parser.add_argument("--template", help="of a new sandbox (default: default)")
    parser.add_argument("--memory-mib", type=int, metavar="N", help="that a new sandbox may use")
    add_network_options(parser)
    parser.add_argument("--keep", action="store_true", help="do not close the sandbox; print its id to standard error")
    parser.add_argument(
        "--upload",
        action="append",
        default=[],
        metavar="FILE[:PATH]",
        help="copy a file into the sandbox first, to /root or to PATH; may be given again",
    )
    parser.add_argument("--json", action="store_true", help="the whole result as one JSON object, when it is over")
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a file, or - for standard input")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="for the script")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    # So that the sandbox of a server is closed also when this command is told to end.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    if chosen.code is None and chosen.script is None:
        print_error(InvalidArgument("script: nothing to run", hint="give a file, - for standard input, or -c CODE"))
        return _MISUSED
    try:
        script = _script(chosen)
        with _sandbox(chosen) as sandbox:
            _upload(sandbox, chosen.upload)
            if chosen.language == "python" and (script.arguments or chosen.sandbox is None):
                sandbox.run_code(script.before)
            return _run(sandbox, script.code(chosen.language), chosen)
    except KeyboardInterrupt:
        return INTERRUPTED
    except RametError as error:
        print_error(error)
        return FAILED
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, slots=True)
class Script:
    """What is to be run."""

    name: str
    source: str
    arguments: Sequence[str]

    def code(self, language: str) -> str:
        if language == "bash" and self.arguments:
            # On the first line of the script, so that its lines keep their numbers.
            return f"set -- {shlex.join(self.arguments)}; {self.source}"
        return self.source

    @property
    def before(self) -> str:
        """A cell that puts the arguments where a Python script looks for them; it leaves no name behind."""
        return f"__import__('sys').argv[:] = {ascii([self.name, *self.arguments])}"


def _script(chosen: argparse.Namespace) -> Script:
    if chosen.code is not None:
        source, name = str(chosen.code), "-c"
        arguments = [*([chosen.script] if chosen.script is not None else []), *chosen.arguments]
        return Script(name, source, arguments)
    if chosen.script == "-":
        return Script("-", sys.stdin.read(), chosen.arguments)
    try:
        return Script(chosen.script, Path(chosen.script).read_text("utf-8"), chosen.arguments)
    except OSError as error:
        raise InvalidArgument(f"script: cannot read {chosen.script}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"script: {chosen.script} is not text in UTF-8") from error


@contextmanager
def _sandbox(chosen: argparse.Namespace) -> Iterator[Sandbox]:
    url = chosen_url(chosen)
    if chosen.sandbox is not None:
        if url is None:
            raise InvalidArgument(
                "sandbox: only a server has sandboxes from before", hint="name it with --url or RAMET_URL"
            )
        check_for_new(chosen)
        yield find(url, chosen.sandbox)
        return
    if chosen.keep and url is None:
        raise InvalidArgument(
            "keep: without a server the sandbox ends with this command", hint="name a server with --url or RAMET_URL"
        )
    network, secrets = chosen_network(chosen)
    with progress("starting a sandbox"):
        sandbox = Sandbox(
            chosen.template or "default", memory_mib=chosen.memory_mib, network=network, secrets=secrets, url=url
        )
    if chosen.keep:
        keep(sandbox)
        print_note(f"sandbox {sandbox.id}")
        yield sandbox
    else:
        with sandbox:
            yield sandbox


def _upload(sandbox: Sandbox, wanted: list[str]) -> None:
    for one in wanted:
        local, _, remote = one.partition(":")
        try:
            file = open(local, "rb")  # noqa: SIM115 - its errors are ours to tell, those of the sandbox are not
        except OSError as error:
            raise InvalidArgument(f"upload: cannot read {local}: {error.strerror}") from error
        with file:
            try:
                sandbox.files.write(remote or os.path.basename(local), _pieces(file, local))
            finally:
                show_progress("")


def _pieces(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The file piece by piece, with what has been sent on the way."""
    total, sent = os.fstat(file.fileno()).st_size, 0
    while piece := file.read(_PIECE_BYTES):
        yield piece
        sent += len(piece)
        show_progress(f"{name}: {size(sent)} of {size(total)}")


def _run(sandbox: Sandbox, code: str, chosen: argparse.Namespace) -> int:
    if chosen.json:
        result = sandbox.run_code(code, chosen.language, chosen.timeout)
        print(json.dumps({"sandbox": sandbox.id, **_facts(result)}))
        return result.exit_code
    for event in sandbox.run_code_stream(code, chosen.language, chosen.timeout):
        if isinstance(event, OutputEvent):
            write(sys.stdout if event.type == "stdout" else sys.stderr, event.data)
        elif isinstance(event, ResultEvent):
            if event.result.what == "display" or chosen.code is not None:
                write(sys.stdout, f"{event.result.text}\n" if event.result.text is not None else "")
        elif isinstance(event, ExitEvent):
            explain(event.result)
            return event.code
    raise AssertionError("a stream of events ends with an exit")


def write(stream: TextIO, text: str) -> None:
    """At once, whole, whatever the terminal's encoding is."""
    if text:
        stream.buffer.write(text.encode(stream.encoding or "utf-8", "replace"))
        stream.buffer.flush()


def explain(result: Result) -> None:
    """What the exit code alone does not say."""
    if result.cause == "timeout":
        print_note("ramet: interrupted at its timeout")
    if result.state == "lost":
        print_note(f"ramet: the sandbox's Python ended ({result.cause}); its variables are gone, its files are not")


def _facts(result: Result) -> dict[str, object]:
    """A result as JSON; bytes of images in base64."""

    def plain(value: object) -> object:
        return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value

    return {
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "value": result.value,
        "results": [
            {"what": one.what, "data": {mime: plain(value) for mime, value in one.data.items()}}
            for one in result.results
        ],
        "error": None if result.error is None else {"name": result.error.name, "message": result.error.message},
        "interrupted": result.interrupted,
        "state": result.state,
        "cause": result.cause,
        "duration_seconds": result.duration_seconds,
    }
