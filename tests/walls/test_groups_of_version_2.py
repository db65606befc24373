"""Control groups of version 2, on hosts that have some controller there: where the engine and its sandboxes stand.

The limits themselves are files with other names than on version 1; which processes they hold for is what can go wrong.
Which controllers are taken where there are several: `tests/unit/test_control_groups.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramet.isolation.kernel import cgroups
from tests.server.running import Server

# A program enters the group argv[1] first, and takes the controllers argv[2] instead of memory, pids and cpu.
_ENTER = """
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as door:
    door.write(str(os.getpid()))
"""
_TAKE = """
import sys
from ramet.isolation.kernel import cgroups
cgroups.CONTROLLERS = tuple(sys.argv[2].split(","))
"""

_SANDBOX = """
import json
from pathlib import Path
from ramet import Sandbox, close_engine

base = Path(sys.argv[3])
with Sandbox(memory_mib=128, pids=24, cpus=0.25, history=False) as sandbox:
    [folder] = base.glob("ramet-*")
    groups = [group for group in folder.iterdir() if group.is_dir()]
    standing = {group.name: len((group / "cgroup.procs").read_text().split()) for group in groups}
    before = sandbox.run_code("print(open('/proc/self/cgroup').read())").stdout
    own = next(line for line in before.splitlines() if line.startswith("0::")).rpartition("/")[2]
    limits = {file.name: file.read_text().strip() for file in (folder / own).iterdir() if file.name.endswith(".max")}
    sandbox.run_code("import os; os._exit(1)")
    after = sandbox.run_code("print(open('/proc/self/cgroup').read())").stdout
    inside = [next(line for line in text.splitlines() if line.startswith("0::")) for text in (before, after)]
    directly = (folder / "cgroup.procs").read_text()
close_engine()
print(json.dumps([standing, inside, directly, limits, [str(left) for left in base.glob("ramet-*")]]))
"""


@dataclass(frozen=True)
class Given:
    """An empty group with controllers, for one test, in which programs may be put."""

    folder: Path
    controllers: tuple[str, ...]

    def run(self, program: str, *arguments: str, group: Path | None = None) -> str:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _ENTER + _TAKE + program,
                str(group or self.folder),
                ",".join(self.controllers),
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def state(self) -> tuple[str, str]:
        """What it shares out, and what kind of group it is."""
        files = (self.folder / "cgroup.subtree_control", self.folder / "cgroup.type")
        shared, kind = (file.read_text().strip() for file in files)
        return shared, kind

    def mark_as_delegated(self) -> None:
        """As systemd does for Delegate=yes."""
        try:
            os.setxattr(self.folder, "user.delegate", b"1")
        except OSError as error:
            pytest.skip(f"groups take no extended attributes here: {error}")


@pytest.fixture
def given() -> Iterator[Given]:
    mount, own = cgroups._hierarchies().get(""), cgroups._own_groups().get("")
    if mount is None or own is None:
        pytest.skip("this host has no control groups of version 2")
    for above in dict.fromkeys((own, os.path.dirname(own))):
        base = Path(os.path.normpath(f"{mount}/{above}"))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_alone_in(base))
                found = stack.enter_context(_group_with_controllers(base))
            except OSError:
                continue
            yield found
            return
    pytest.skip("this host has no controller of version 2 to spare")


@contextlib.contextmanager
def _alone_in(base: Path) -> Iterator[None]:
    """Others that test at the same time share controllers out in the same group: what one switches off, all lose."""
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until = time.monotonic() + 300
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < until, f"another test has held {base} for five minutes"
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _group_with_controllers(base: Path) -> Iterator[Given]:
    """Raises OSError where there can be none."""
    there = (base / "cgroup.controllers").read_text().split()
    wanted = [name for name in cgroups.CONTROLLERS if name in there] or there[:1]
    control, folder = base / "cgroup.subtree_control", base / f"test-{secrets.token_hex(4)}"
    before = control.read_text().split()
    new = [name for name in wanted if name not in before]
    if not wanted:
        raise OSError("no controller")
    if new:
        control.write_text(" ".join(f"+{name}" for name in new))
    try:
        folder.mkdir()
        try:
            yield Given(folder, tuple(wanted))
        finally:
            _remove(folder)
    finally:
        if new:
            with contextlib.suppress(OSError):  # an engine beside us uses them by now
                control.write_text(" ".join(f"-{name}" for name in new))


def _remove(folder: Path) -> None:
    """With the groups in it. Processes that have just ended leave their groups a moment later."""
    until = time.monotonic() + 20
    for group in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True) + [folder]:
        while True:
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                assert time.monotonic() < until, f"{group} holds {(group / 'cgroup.procs').read_text().split()}"
                time.sleep(0.02)


def test_engine_and_sandboxes_stand_in_groups_of_their_own_and_none_is_left(given: Given) -> None:
    caller = given.folder / "caller"
    caller.mkdir()
    standing, inside, directly, limits, left = json.loads(given.run(_SANDBOX, str(given.folder), group=caller))
    assert standing["engine"] > 1
    # A REPL and its shadow, which owns the memory.
    own = inside[0].rpartition("/")[2]
    assert own.startswith("pod-")
    assert standing[own] == 2
    assert inside[1] == inside[0]
    wanted = {"memory": ("memory.max", str(128 << 20)), "pids": ("pids.max", "25"), "cpu": ("cpu.max", "25000 100000")}
    for file, value in (wanted[name] for name in given.controllers if name in wanted):
        assert limits[file] == value
    assert (directly, left) == ("", [])


def test_a_group_that_holds_the_caller_is_not_changed(given: Given) -> None:
    """Neither by an engine nor by a look at what could be had."""
    before = given.state()
    given.run("""
assert cgroups._switch_on(sys.argv[1]) is None
cgroups.undo(cgroups.delegate(None))
""")
    assert given.state() == before == ("", "domain")


def test_an_embedded_engine_moves_nobody_also_where_it_could(given: Given) -> None:
    given.mark_as_delegated()
    said = given.run("""
from ramet import Sandbox
with Sandbox() as sandbox:
    print(str(os.getpid()) in open(sys.argv[1] + "/cgroup.procs").read().split())
""")
    assert said == "True\n"
    assert given.state() == ("", "domain")


_STEP = """
moved = cgroups.step_aside()
own = open("/proc/self/cgroup").read().splitlines()
print(moved, next(line for line in own if line.startswith("0::")).rpartition("/")[2])
"""


def test_a_server_steps_aside_in_a_group_that_was_given_to_it_as_a_whole(given: Given) -> None:
    given.mark_as_delegated()
    assert given.run(_STEP) == "True ramet-server\n"
    shared, kind = given.state()
    assert (sorted(shared.split()), kind) == (sorted(given.controllers), "domain")


def test_a_server_stays_where_it_is_in_a_group_that_was_not_given_to_it(given: Given) -> None:
    assert given.run(_STEP) == f"False {given.folder.name}\n"
    assert given.state() == ("", "domain")
    assert not (given.folder / "ramet-server").exists()


def test_a_server_stays_where_it_is_when_somebody_else_is_there(given: Given) -> None:
    given.mark_as_delegated()
    with_another = f"""
import subprocess
another = subprocess.Popen(["sleep", "100"])
{_STEP}
print(str(another.pid) in open(sys.argv[1] + "/cgroup.procs").read().split())
another.kill()
another.wait()
"""
    assert given.run(with_another) == f"False {given.folder.name}\nTrue\n"
    assert given.state() == ("", "domain")


def test_the_top_of_a_containers_own_groups_counts_as_given(given: Given) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("util-linux's unshare is missing")
    mount = cgroups._hierarchies()[""]
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    # Twice: the same file system cannot be mounted on itself.
    script = f'mount -t tmpfs none {mount} && mount -t cgroup2 none {mount} && exec "$@"'
    command = [unshare, *user, "--mount", "--cgroup", "sh", "-c", script, "sh", sys.executable, "-c", _TAKE + _STEP, ""]
    inside = f"os.execv({unshare!r}, [*{command!r}, sys.argv[2]])"
    assert given.run(inside) == "True ramet-server\n"
    assert sorted(given.state()[0].split()) == sorted(given.controllers)


@pytest.mark.deep("restarts")
def test_ramet_serve_steps_aside_with_all_that_it_starts(given: Given, tmp_path: Path) -> None:
    given.mark_as_delegated()
    server = Server(tmp_path)
    serve = "from ramet.cli.main import main; sys.argv[1:] = sys.argv[3:]; sys.exit(main())"
    command = [sys.executable, "-c", _ENTER + _TAKE + serve, str(given.folder), ",".join(given.controllers)]
    server.start(command=command)
    try:
        assert (given.folder / "cgroup.procs").read_text() == ""
        standing = (given.folder / "ramet-server" / "cgroup.procs").read_text().split()
        assert str(server.process.pid) in standing
        assert len(standing) >= 3  # the keeper and the worker, too
        if "memory" in given.controllers:  # else the engine's groups are those of version 1
            [engine] = given.folder.glob("ramet-*-*")
            assert sorted((engine / "cgroup.controllers").read_text().split()) == sorted(given.controllers)
    finally:
        assert server.stop() == 0
