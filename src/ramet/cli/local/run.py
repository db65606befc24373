"""ramet run: run a script in a sandbox as if it ran here, with its output and its exit code."""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ramet.cli.local.outcomes import ended_as_a_command, exit_code, explain, show_events
from ramet.cli.local.output_folder import OutputFolder
from ramet.cli.local.script import RunScript, chosen_script
from ramet.cli.local.standard_input import forwarded_input, has_input
from ramet.cli.output import print_error, print_note, progress, shown
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, chosen_url, find, keep
from ramet.cli.sandbox_ids import completes
from ramet.cli.sandbox_options import add_sandbox_options, check_exists, make_sandbox
from ramet.cli.sandboxes.copying import CopyTally, upload
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import InvalidArgument
from ramet.protocol.values.results import Result

_EXAMPLES = """\
examples:
  ramet run script.py --its-own-option        options of the script come after it
  ramet run -c 'print(6 * 7)'                 the value of a last expression is printed too
  echo 'print(1)' | ramet run -
  ramet run count.py < data.csv               the script reads its standard input
  ramet run --language bash -c 'ls -l'
  ramet run --upload data.csv --timeout 60 analysis.py
  ramet run --mount ./data:/data --output out analysis.py
                                              files of ./data can be read in /data; plots and files come out in ./out
  ramet run --env MODE=fast --env LANG script.py
  ramet run --network api.example --network '*.data.example:443' fetch.py
  export API_KEY=...; ramet run --network api.example --secret API_KEY@api.example fetch.py
                                              the script sees a placeholder in API_KEY, the host gets the value
  ramet run --network open -c '!pip install rich'
  ramet run --keep -c 'x = 1'                 at a server: prints the id of the sandbox, which stays
  ramet run --sandbox sbx_0f3a -c 'x + 1'     in a sandbox that exists
  ramet run --json -c '6 * 7' | jq .value

Without --url or RAMET_URL the sandbox is made by this command, on this machine, and ends with it.

The script is copied to /root, its working folder, together with the modules beside it that it imports.

exit code: the script's own; 124 at the timeout; 130 after Ctrl-C; 125 when the sandbox failed and not the script.
"""

_MISUSED = 2
_FILE_NOT_FOUND = re.compile(r"\[Errno 2\] No such file or directory: '([^']+)'")
_UPLOAD_BYTES_AT_MOST = 2**40


def add_command(commands: Commands) -> None:
    parser = new_command(
        commands,
        "run",
        "run a script in a sandbox",
        __doc__,
        _EXAMPLES,
        usage="ramet run [options] (SCRIPT | - | -c CODE) [ARGUMENTS ...]",
    )
    add_server_option(parser, "a sandbox of this command")
    parser.add_argument("-c", "--code", help="code to run")
    parser.add_argument(
        "--language", choices=("python", "bash"), default="python", help="language of the code (default: python)"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="stop the code after this time; exit code 124")
    completes(
        parser.add_argument("--sandbox", metavar="ID", help="run in this sandbox of a server, and leave it running")
    )
    add_sandbox_options(parser, "run")
    parser.add_argument("--keep", action="store_true", help="do not close the sandbox; print its id to standard error")
    parser.add_argument(
        "--upload",
        action="append",
        default=[],
        metavar="FILE[:PATH]",
        help="copy a file or a folder into the sandbox first, to /root or to PATH; may be given again",
    )
    parser.add_argument(
        "--alone", action="store_true", help="do not copy the modules beside the script that it imports"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="save plots, and the files that the code writes to its working folder, in this new or empty folder",
    )
    parser.add_argument("--json", action="store_true", help="print the whole result as one JSON object at the end")
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="file to run, or - for standard input")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="arguments of the script")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    if chosen.code is None and chosen.script is None:
        print_error(InvalidArgument("there is nothing to run", hint="give a file, - for standard input, or -c CODE"))
        return _MISUSED
    return ended_as_a_command(lambda: _run_script(chosen), chosen)


def _run_script(chosen: argparse.Namespace) -> int:
    script = chosen_script(chosen)
    output = None if chosen.output is None else OutputFolder(chosen.output)
    with _sandbox(chosen) as sandbox:
        _upload(sandbox, chosen.upload)
        script.upload(sandbox)
        return _run(sandbox, script, output, chosen)


@contextmanager
def _sandbox(chosen: argparse.Namespace) -> Iterator[Sandbox]:
    """Yield the sandbox to run in: one of a server, a new one that is kept, or one that ends with this command."""
    url = chosen_url(chosen)
    if chosen.sandbox is not None:
        if url is None:
            raise InvalidArgument(
                "--sandbox: only a server has sandboxes from before", hint="name it with --url or RAMET_URL"
            )
        check_exists(chosen)
        yield find(url, chosen.sandbox)
        return
    if chosen.keep and url is None:
        raise InvalidArgument(
            "--keep: without a server the sandbox ends with this command", hint="name a server with --url or RAMET_URL"
        )
    with progress("starting a sandbox"):
        sandbox = make_sandbox(chosen, url)
    if chosen.keep:
        keep(sandbox)
        print_note(f"sandbox {sandbox.id}")
        yield sandbox
    else:
        with sandbox:
            yield sandbox


def _upload(sandbox: Sandbox, wanted: list[str]) -> None:
    copied = CopyTally(_UPLOAD_BYTES_AT_MOST)
    for one in wanted:
        local, _, remote = one.partition(":")
        try:
            upload(sandbox, local, remote or os.path.basename(os.path.abspath(local)), copied)
        except InvalidArgument as error:
            raise InvalidArgument(f"--upload: {error.message}", hint=error.hint) from error


def _run(sandbox: Sandbox, script: RunScript, output: OutputFolder | None, chosen: argparse.Namespace) -> int:
    stays = chosen.keep or chosen.sandbox is not None
    if output is not None:
        output.begin(sandbox)
    with forwarded_input(sandbox, chosen.script != "-" and has_input(), remove=stays) as folder:
        code = script.cell(folder, final=not stays)
        if chosen.json:
            result = sandbox.run_code(code, timeout=chosen.timeout)
            for one in result.results if output is not None else ():
                output.save_plot(one)  # type: ignore[union-attr]
        else:
            events = sandbox.run_code_stream(code, timeout=chosen.timeout)
            result = show_events(events, output, values=chosen.code is not None)
    saved = output.end(sandbox) if output is not None else None
    ended = exit_code(result)
    if chosen.json:
        facts = {"sandbox": sandbox.id, **_facts(result, chosen.language), "exit_code": ended}
        print(json.dumps(facts if saved is None else {**facts, "saved": saved}))
    else:
        explain(result, chosen.timeout)
        _tell_of_local_file(result)
    if output is not None:
        output.tell()
    return ended


def _tell_of_local_file(result: Result) -> None:
    """Say how code gets a file that it did not find and that is on this machine."""
    if result.error is None or result.error.name != "FileNotFoundError":
        return
    found = _FILE_NOT_FOUND.fullmatch(result.error.message)
    if found is None or not os.path.exists(found[1]):
        return
    path = os.path.normpath(found[1])
    if os.path.isabs(path):
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        option = f"--mount {folder}:{folder}"
    elif path.startswith(".."):
        option = f"--upload {path}:PATH"
    else:
        option = f"--upload {path.partition(os.sep)[0]}"
    print_note(
        f"ramet: {shown(path)} is on this machine, but not in the sandbox\n\nhint: ramet run {shown(option)} ..."
    )


def _facts(result: Result, language: str) -> dict[str, object]:
    """Return a result as JSON types, with the bytes of images in base64."""

    def plain(value: object) -> object:
        return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value

    # A bash script has an exit code and no exceptions.
    error = None if language == "bash" else result.error
    return {
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "value": result.value,
        "results": [
            {"what": one.what, "data": {mime: plain(value) for mime, value in one.data.items()}}
            for one in result.results
        ],
        "error": None if error is None else {"name": error.name, "message": error.message},
        "interrupted": result.interrupted,
        "state": result.state,
        "cause": result.cause,
        "duration_seconds": result.duration_seconds,
    }
