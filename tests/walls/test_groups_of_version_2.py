"""Control groups of version 2, on hosts that have some controller there: where the engine and its sandboxes stand.

The limits themselves are files with other names than on version 1; which processes they hold for is what can go wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.isolation import cgroups

# The owner takes whatever controller this host has to spare, instead of memory, pids and cpu.
_PROGRAM = """
import json, sys
from pathlib import Path
from ramet import Sandbox, close_engine
from ramet.isolation import cgroups

cgroups.CONTROLLERS = (sys.argv[1],)
base = Path(sys.argv[2])
with Sandbox() as sandbox:
    [folder] = base.glob("ramet-*")
    groups = [group for group in folder.iterdir() if group.is_dir()]
    standing = {group.name: len((group / "cgroup.procs").read_text().split()) for group in groups}
    before = sandbox.run_code("print(open('/proc/self/cgroup').read())").stdout
    sandbox.run_code("import os; os._exit(1)")
    after = sandbox.run_code("print(open('/proc/self/cgroup').read())").stdout
    inside = [next(line for line in text.splitlines() if line.startswith("0::")) for text in (before, after)]
    directly = (folder / "cgroup.procs").read_text()
close_engine()
print(json.dumps([standing, inside, directly, [str(left) for left in base.glob("ramet-*")]]))
"""


@pytest.fixture
def spare() -> Iterator[tuple[str, Path]]:
    """A controller of version 2, and the folder where an engine of ours would put its groups."""
    mount, own = cgroups._hierarchies().get(""), cgroups._own_groups().get("")
    base = Path(f"{mount}/{own}") if mount and own else None
    names = (base / "cgroup.controllers").read_text().split() if base and base.is_dir() else []
    if not names or base is None:
        pytest.skip("this host has no controller of version 2 to spare")
    control = base / "cgroup.subtree_control"
    before = control.read_text().split()
    try:
        control.write_text(f"+{names[0]}")
    except OSError as error:
        pytest.skip(f"groups of version 2 cannot be made here: {error}")
    yield names[0], base
    if names[0] not in before:
        control.write_text(f"-{names[0]}")


def test_engine_and_sandboxes_stand_in_groups_of_their_own_and_none_is_left(spare: tuple[str, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, spare[0], str(spare[1])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    standing, inside, directly, left = json.loads(done.stdout)
    assert standing["engine"] > 1
    # A REPL and its shadow, which owns the memory.
    assert standing["pod-1"] == 2
    assert [line.rpartition("/")[2] for line in inside] == ["pod-1", "pod-1"]
    assert (directly, left) == ("", [])
