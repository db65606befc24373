"""ramet doctor: what this host can do, what is missing and how to mend it, and what a sandbox here really has."""

from __future__ import annotations

import argparse
import platform
import sys
from typing import TYPE_CHECKING

from ramet.client.sandbox import Sandbox
from ramet.errors import RametError
from ramet.isolation.doctor import Finding, examine

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet doctor
  ramet doctor --no-trial

exit code: 0 when sandboxes can be made here, 1 when not.
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what this machine can do for a sandbox",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--no-trial", action="store_true", help="do not make a sandbox to see what it really has")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    print(f"Linux {platform.release()}, {platform.machine()}, Python {platform.python_version()} ({sys.executable})\n")
    findings = examine()
    for finding in findings:
        _print(finding)
    able = all(finding.ok for finding in findings if finding.needed)
    if not able:
        print("\nSandboxes cannot be made here. Mend the lines marked `no`, the first one first.")
        return 1
    return 0 if chosen.no_trial else _trial()


def _print(finding: Finding) -> None:
    mark = "ok" if finding.ok else "no" if finding.needed else "--"
    print(f"  {mark}  {finding.name:<22} {finding.detail}")
    if finding.fix and not finding.ok:
        print(f"      {'':<22} fix: {finding.fix}")


def _trial() -> int:
    print("\nA sandbox here really has:")
    try:
        with Sandbox(url="") as sandbox:  # of this machine, also where RAMET_URL names a server
            walls = sandbox.info().walls
    except RametError as error:
        print(f"  none: {error}")
        return 1
    for name, what in walls.items():
        shown = ", ".join(map(str, what)) if isinstance(what, (list, tuple)) else str(what)
        print(f"  {name:<26} {shown}")
    return 0
