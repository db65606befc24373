"""Ids of sandboxes and snapshots on the command line: arguments that shells complete, and a short form for tables."""

from __future__ import annotations

import argparse
from collections.abc import Collection

_SANDBOXES = "ramet ps --quiet 2>/dev/null"
_SNAPSHOTS = "ramet snapshot --list 2>/dev/null"
_PREFIX = "sbx_"
_SHORT_CHARACTERS = 6


def _completion(function: str, command: str) -> dict[str, object]:
    """For shtab: the completion function of each shell, which offers the lines that a command prints."""
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {
            "bash": f'{function}() {{ compgen -W "$({command})" -- "$1"; }}',
            "zsh": f"{function}() {{ compadd -- $({command}) }}",
            "fish": f"function {function}\n  {command}\nend",
        },
    }


def completes(action: argparse.Action) -> None:
    """Make shells offer sandbox ids for this argument."""
    action.complete = _completion("_ramet_sandboxes", _SANDBOXES)  # type: ignore[attr-defined]


def completes_snapshot(action: argparse.Action) -> None:
    """Make shells offer snapshot ids for this argument."""
    action.complete = _completion("_ramet_snapshots", _SNAPSHOTS)  # type: ignore[attr-defined]


def completes_path(action: argparse.Action) -> None:
    """Make shells offer files of this machine, and sandboxes as the beginning of SANDBOX:PATH."""
    function = "_ramet_paths"
    action.complete = {  # type: ignore[attr-defined]
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {
            "bash": f'{function}() {{ compgen -W "$({_SANDBOXES} | sed s/$/:/)" -- "$1"; compgen -f -- "$1"; }}',
            "zsh": f"{function}() {{ compadd -S '' -- $({_SANDBOXES} | sed 's/$/:/'); _files }}",
            "fish": f"function {function}\n  {_SANDBOXES} | string replace -r '$' :\n"
            "  __fish_complete_path (commandline -ct)\nend",
        },
    }


def add_sandbox_argument(
    parser: argparse.ArgumentParser, name: str = "sandbox", metavar: str = "SANDBOX", what: str = "sandbox"
) -> None:
    completes(parser.add_argument(name, metavar=metavar, help=f"{what}: its id, or the beginning of it"))


def short(sandbox_id: str, all_ids: Collection[str]) -> str:
    """Return the shortest unique beginning of an id."""
    for length in range(len(_PREFIX) + _SHORT_CHARACTERS, len(sandbox_id)):
        beginning = sandbox_id[:length]
        if not any(other.startswith(beginning) for other in all_ids if other != sandbox_id):
            return beginning
    return sandbox_id
