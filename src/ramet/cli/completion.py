"""ramet completion: a script that teaches a shell to complete ramet commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import shtab

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet completion bash > ~/.local/share/bash-completion/completions/ramet
  ramet completion zsh > "${fpath[1]}/_ramet"
  source <(ramet completion bash)             for this shell only
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser], ramet: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "completion",
        help="completion for a shell",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.set_defaults(run=lambda chosen: run(chosen, ramet))


def run(chosen: argparse.Namespace, ramet: argparse.ArgumentParser) -> int:
    print(shtab.complete(ramet, chosen.shell))
    return 0
