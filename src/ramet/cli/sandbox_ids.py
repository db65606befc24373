"""Sandbox ids on the command line: an argument that shells complete, and a short form for tables."""

from __future__ import annotations

import argparse
from collections.abc import Collection

_LIST = "ramet ps --quiet 2>/dev/null"
# For shtab: the completion function of each shell, and its definition.
_COMPLETION = {
    "bash": "_ramet_sandboxes",
    "zsh": "_ramet_sandboxes",
    "fish": "(_ramet_sandboxes)",
    "preamble": {
        "bash": f'_ramet_sandboxes() {{ compgen -W "$({_LIST})" -- "$1"; }}',
        "zsh": f"_ramet_sandboxes() {{ compadd -- $({_LIST}) }}",
        "fish": f"function _ramet_sandboxes\n  {_LIST}\nend",
    },
}
_PREFIX = "sbx_"
_SHORT_CHARACTERS = 6


def completes(action: argparse.Action) -> None:
    """Make shells offer sandbox ids for this argument."""
    action.complete = _COMPLETION  # type: ignore[attr-defined]


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
