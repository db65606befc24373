"""A script for `ramet run` with its arguments, and the cell that makes the guest run it as Python would."""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import sys
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

from ramet.cli.local.neighbours import BYTES_AT_MOST, Neighbour, neighbours
from ramet.cli.local.output_folder import WORKING_FOLDER
from ramet.cli.output import shown
from ramet.cli.sandboxes.copying import MIB, CopyTally, reading, upload_open
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import InvalidArgument
from ramet.protocol.values.history import CODE_CHARACTERS

_SOURCE_BYTES_AT_MOST = 32 * MIB
_TYPED_BYTES = 4 * CODE_CHARACTERS


@dataclass(frozen=True, slots=True)
class RunScript:
    """Code, its name in tracebacks, and its files. ``path`` is None for code that is not in a file."""

    language: str
    name: str
    source: bytes
    arguments: Sequence[str]
    path: str | None = None
    beside: Sequence[Neighbour] = ()

    def upload(self, sandbox: Sandbox) -> None:
        """Upload the script's file and the modules beside it to the working folder."""
        if self.path is None:
            return
        sandbox.files.write(self.path, self.source)
        copied = CopyTally(BYTES_AT_MOST)
        for one in self.beside:
            with reading(one.local, follow=False) as file:
                upload_open(sandbox, file, one.local, f"{WORKING_FOLDER}/{one.path}", copied)

    def cell(self, input_folder: str | None, final: bool) -> str:
        """Return the Python cell that runs it. ``final``: the sandbox ends after it."""
        if self.language == "bash":
            text = self.source.decode("utf-8", "surrogateescape")
            if self.arguments:
                # On the first line of the script, so that its lines keep their numbers.
                text = f"set -- {shlex.join(self.arguments)}; {text}"
        else:
            text = "" if self.path is not None else decode(self.source, self.name)
        order = {
            "language": self.language,
            "path": self.path,
            "name": self.name,
            "source": text,
            "arguments": list(self.arguments),
            "modules": [f"{WORKING_FOLDER}/{one.path}" for one in self.beside],
            "input": input_folder,
            "final": final,
        }
        # The comment is what histories show of it, and the sandbox's own `%history`.
        call = f"__import__('ramet_guest.processes.scripts').processes.scripts.run({ascii(json.dumps(order))})"
        return f"# {self._typed()}\n{call}"

    def _typed(self) -> str:
        """What the user typed, in one line."""
        if not self.name.startswith("<"):
            arguments = self.arguments if self.language == "bash" else self.arguments[1:]
            typed = shlex.join([self.name, *arguments])
        else:
            source = self.source[:_TYPED_BYTES].decode("utf-8", "replace")
            typed = source if self.language == "python" else f"$ {source}"
        return shown(" ".join(typed.split()))


def chosen_script(chosen: argparse.Namespace) -> RunScript:
    """Read the script before anything starts."""
    language = chosen.language
    if chosen.code is not None:
        more = [*([chosen.script] if chosen.script is not None else []), *chosen.arguments]
        source = str(chosen.code).encode("utf-8", "surrogateescape")
        return RunScript(language, "<string>", source, _argv("-c", more, language))
    arguments = _argv(chosen.script, chosen.arguments, language)
    if chosen.script == "-":
        source = sys.stdin.buffer.read(_SOURCE_BYTES_AT_MOST + 1)
        _check_size(source, "standard input")
        return RunScript(language, "<stdin>", source, arguments)
    if chosen.script.endswith(".ipynb"):
        raise InvalidArgument(
            f"cannot run {shown(chosen.script)}: it is a notebook, not a script",
            hint=f"make a script of it: jupyter nbconvert --to script {shlex.quote(shown(chosen.script))}",
        )
    try:
        with reading(chosen.script) as file:
            source = file.read(_SOURCE_BYTES_AT_MOST + 1)
    except InvalidArgument as error:
        raise InvalidArgument(error.message) from error
    _check_size(source, chosen.script)
    if language == "bash":
        return RunScript(language, chosen.script, source, arguments)
    beside = () if chosen.alone else neighbours(chosen.script, source)
    path = f"{WORKING_FOLDER}/{os.path.basename(chosen.script)}"
    return RunScript(language, chosen.script, source, arguments, path, beside)


def _argv(first: str, rest: Sequence[str], language: str) -> list[str]:
    return list(rest) if language == "bash" else [first, *rest]


def _check_size(source: bytes, name: str) -> None:
    if len(source) > _SOURCE_BYTES_AT_MOST:
        raise InvalidArgument(
            f"SCRIPT must be at most {_SOURCE_BYTES_AT_MOST // MIB} MiB of code, got more in {shown(name)}"
        )


def decode(source: bytes, name: str) -> str:
    """Decode source as Python does: byte order mark, coding line."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        return source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"SCRIPT must be text, got bytes in {name} that cannot be decoded: {error}") from error
