"""Our own versions of IPython's magics that hide failures."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import NoReturn

from ramet_guest.packaging.pip_magic import run_pip
from ramet_guest.processes.nameless import nameless_file
from ramet_guest.repl import CommandFailed, Repl


def register(repl: Repl) -> None:
    """Replaces `%%bash`, `%%sh` and `%pip`."""

    def bash(line: str, cell: str) -> None:
        run_script(repl, line, cell)

    def pip(line: str) -> None:
        code = run_pip(line, repl.processes, repl.output)
        if code != 0:
            raise CommandFailed("pip", code)

    for name in ("bash", "sh"):
        repl.shell.register_magic_function(bash, "cell", name)
    repl.shell.register_magic_function(pip, "line", "pip")


class Options(argparse.ArgumentParser):
    """The options of IPython's `%%script` that work for a program that runs to its end."""

    def __init__(self) -> None:
        super().__init__(prog="%%bash", add_help=False, allow_abbrev=False)
        self.add_argument("--out")
        self.add_argument("--err")
        self.add_argument("--no-raise-error", action="store_true")

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def run_script(repl: Repl, line: str, cell: str) -> None:
    """Runs `%%bash --out name --err name --no-raise-error`."""
    words = shlex.split(line)
    given, others = Options().parse_known_args(words)
    if others:
        # Flags of bash itself, `--bg` and `--proc` go to IPython's own magic, without our handling of interrupts.
        repl.shell.find_cell_magic("script")(f"bash {line}", cell)
        return
    files = {number: nameless_file("output") for number, name in ((1, given.out), (2, given.err)) if name}
    try:
        code = repl.processes.run_bash(cell, files)
        for number, name in ((1, given.out), (2, given.err)):
            if name:
                repl.namespace[name] = contents(files[number])
    finally:
        for descriptor in files.values():
            os.close(descriptor)
    if code != 0 and not given.no_raise_error:
        raise CommandFailed("bash", code)


def contents(descriptor: int) -> str:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read().decode("utf-8", "replace")
