"""ramet completion: print a script that lets a shell complete ramet commands."""

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
  ramet completion fish > ~/.config/fish/completions/ramet.fish
  source <(ramet completion bash)             for this shell only

Ids of sandboxes are completed too: they are asked for at the server (RAMET_URL).
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser], ramet: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell to complete for")
    parser.set_defaults(run=lambda chosen: run(chosen, ramet))


def run(chosen: argparse.Namespace, ramet: argparse.ArgumentParser) -> int:
    print(shtab.complete(ramet, chosen.shell))
    return 0
