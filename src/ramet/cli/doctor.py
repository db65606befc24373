"""ramet doctor: show what this host can do, what is missing and how to fix it, and what a sandbox really has."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time

from ramet.cli.output import duration, shown, size
from ramet.cli.parsing import Commands, new_command
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import RametError
from ramet.freezing.images.stored.figures import figures, last_error
from ramet.freezing.images.stored.store import ImageStore
from ramet.isolation.doctor import ONLY_FOR_FORKS, Finding, examine
from ramet.isolation.files import cache_folders

_EXAMPLES = """\
examples:
  ramet doctor
  ramet doctor --no-trial

exit code: 0 if sandboxes can be made and forked here, else 1.
"""

# Kinds of images, where there are several.
_SEVERAL = {
    "template": "templates",
    "snapshot": "snapshots",
    "sandbox": "sandboxes",
    "point": "points of histories",
    "passing": "passing",
    "unnamed": "unnamed",
}


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "doctor", "check what this machine can do for sandboxes", __doc__, _EXAMPLES)
    parser.add_argument("--no-trial", action="store_true", help="do not make a sandbox to check what it really has")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    print(f"Linux {platform.release()}, {platform.machine()}, Python {platform.python_version()} ({sys.executable})\n")
    findings = examine()
    for finding in findings:
        _print(finding)
    _print(_images())
    missing = [finding.name for finding in findings if finding.needed and not finding.ok]
    if missing:
        cannot = "forked" if all(name in ONLY_FOR_FORKS for name in missing) else "made"
        print(f"\nSandboxes cannot be {cannot} here. Fix the lines marked `no`, beginning with the first one.")
        return 1
    return 0 if chosen.no_trial else _trial()


def _print(finding: Finding) -> None:
    mark = "ok" if finding.ok else "??" if not finding.tried else "no" if finding.needed else "--"
    print(f"  {mark}  {finding.name:<22} {finding.detail}")
    if finding.fix and not finding.ok:
        first, *more = finding.fix.splitlines()
        print(f"      {'':<22} fix: {first}")
        for line in more:
            print(f"      {'':<22}      {line}".rstrip())


def _images() -> Finding:
    """What is on disk: sizes, ages, and the last failure, which the engine that met it could show to nobody."""
    folder = None if os.environ.get("RAMET_IMAGES") == "off" else cache_folders.find("images")
    if folder is None:
        return Finding(
            "images", False, False, "nothing is kept on disk: no folder for it, or RAMET_IMAGES=off",
            "unset RAMET_IMAGES, and see that ~/.cache/ramet is a folder that only you can write to",
        )  # fmt: skip
    try:
        store = ImageStore(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except (OSError, RametError) as error:
        return Finding("images", False, False, f"{folder} cannot be used: {error}", getattr(error, "hint", None))
    try:
        return Finding("images", True, False, _described(store, folder))
    finally:
        store.close()


def _described(store: ImageStore, folder: str) -> str:
    found = figures(store)
    parts = [f"{one.images} {kind if one.images == 1 else _SEVERAL[kind]}" for kind, one in found.items() if one.images]
    total = size(sum(one.size_bytes for one in found.values()))
    told = f"{', '.join(parts) or 'none'}, {total} in {folder}"
    used = [one.oldest_used for one in found.values() if one.oldest_used is not None]
    if used:
        told += f"; the least used one was used {duration(time.time() - min(used))} ago"
    if (failure := last_error(store)) is not None:
        at, what = failure
        told += f"; last failure, {duration(time.time() - at)} ago: {shown(what)}"
    return told


def _trial() -> int:
    print("\nA sandbox here really has:")
    try:
        with Sandbox(url="") as sandbox:  # on this machine, even if RAMET_URL names a server
            walls = sandbox.info().walls
    except RametError as error:
        print(f"  none: {error}")
        return 1
    for name, what in walls.items():
        shown = ", ".join(map(str, what)) if isinstance(what, (list, tuple)) else str(what)
        print(f"  {name:<26} {shown}")
    return 0
