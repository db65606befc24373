"""Magics of our own: those of IPython that hide failures."""

from __future__ import annotations

from ramet_guest.pip import run_pip
from ramet_guest.repl import CommandFailed, Repl


def register(repl: Repl) -> None:
    """Replaces `%%bash`, `%%sh` and `%pip`."""

    def bash(line: str, cell: str) -> None:
        code = repl.processes.run_bash(cell)
        if code != 0:
            raise CommandFailed("bash", code)

    def pip(line: str) -> None:
        code = run_pip(line, repl.processes, repl.output)
        if code != 0:
            raise CommandFailed("pip", code)

    for name in ("bash", "sh"):
        repl.shell.register_magic_function(bash, "cell", name)
    repl.shell.register_magic_function(pip, "line", "pip")
