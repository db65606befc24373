"""Where an interpreter may live, and what may be mounted below it: tried in a mount namespace of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

_SECONDS = 180

_CELL = """
import ramet, sys
with ramet.Sandbox(python=sys.argv[1]) as sandbox:
    result = sandbox.run_code(sys.argv[2], timeout=60)
    assert result.ok, result
    print(result.value)
    for child in sandbox.fork(1):
        with child:
            print(child.run_code("sys.prefix", timeout=60).value)
"""


class Elsewhere(Protocol):
    """Runs shell commands as root of a mount namespace that nobody else sees; an ordinary user needs a user one too."""

    def __call__(self, steps: str, *arguments: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare(1) on this machine")
    how = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    return lambda steps, *arguments: subprocess.run(
        [*how, "sh", "-ec", steps, "sh", sys.executable, *arguments],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.deep("load")
def test_an_environment_at_opt_ramet_works(elsewhere: Elsewhere) -> None:
    """The first place that an administrator would choose."""
    steps = """
mount -t tmpfs tmpfs /opt
"$1" -m venv --without-pip --symlinks /opt/ramet
exec "$1" -c "$2" /opt/ramet/bin/python "import sys, IPython; sys.prefix"
"""
    done = elsewhere(steps, _CELL)
    assert (done.returncode, done.stdout) == (0, "'/opt/ramet'\n'/opt/ramet'\n"), done.stderr


_MOUNTED_BELOW = """
copy=$(mktemp -d)
mount -t tmpfs tmpfs "$copy"
"$1" -m venv --without-pip --symlinks "$copy/environment"
mkdir "$copy/environment/share"
mount -t tmpfs tmpfs "$copy/environment/share"
echo "from the mount" > "$copy/environment/share/it"
chmod 755 "$copy"
"""


@pytest.mark.deep("load")
@pytest.mark.parametrize("how", ["as it is", "in a user namespace"])
def test_a_mount_below_the_interpreters_folder_is_shown_with_it(how: str, elsewhere: Elsewhere) -> None:
    """In a user namespace such mounts are locked, and the kernel puts no overlay over the folder that holds them."""
    steps = (
        _MOUNTED_BELOW
        + """
echo "$copy"
exec $3 "$1" -c "$2" "$copy/environment/bin/python" "import sys; open(sys.prefix + '/share/it').read()"
"""
    )
    done = elsewhere(steps, _CELL, "unshare --user --map-root-user --mount" if how != "as it is" else "")
    copy, *lines = done.stdout.splitlines() or [""]
    assert (done.returncode, lines) == (0, ["'from the mount\\n'", f"'{copy}/environment'"]), done.stderr


_WALLS = """
import ramet, sys
with ramet.Sandbox(python=sys.argv[1]) as sandbox:
    print(sandbox.info().walls["files"])
    print(sandbox.run_code("open(sys.prefix + '/new', 'w')" if sandbox.run_code("import sys").ok else "").stderr)
"""


@pytest.mark.deep("load")
def test_an_interpreter_with_a_mount_below_it_is_read_only_and_that_is_told(elsewhere: Elsewhere) -> None:
    done = elsewhere(_MOUNTED_BELOW + 'echo "$copy"\nexec "$1" -c "$2" "$copy/environment/bin/python"', _WALLS)
    assert done.returncode == 0, done.stderr
    copy, walls, *errors = done.stdout.splitlines()
    place = f"{copy}/environment"
    assert walls == f"overlays; {place} as it is on the host ({place}/share is mounted below it)"
    assert any("Read-only file system" in line for line in errors), errors


_SHOWN = """
import ramet, sys
try:
    with ramet.Sandbox(mounts={"/data": sys.argv[1]}) as sandbox:
        cell = "import os; [open(f'/data/{name}').read() for name in ('top', 'a/one', 'a/deep/two')]"
        print(sandbox.run_code(cell).value)
        print(sandbox.run_code("open('/data/a/new', 'w')").stderr.splitlines()[-1])
except ramet.RametError as error:
    print(error)
"""
_FOLDER = """
top=$(mktemp -d)
mount -t tmpfs tmpfs "$top"
mkdir "$top/a"
mount -t tmpfs tmpfs "$top/a"
mkdir "$top/a/deep"
mount -t tmpfs tmpfs "$top/a/deep"
echo 0 > "$top/top"; echo 1 > "$top/a/one"; echo 2 > "$top/a/deep/two"
chmod 755 "$top" "$top/a" "$top/a/deep"
echo "$top"
"""


def test_what_is_mounted_below_a_folder_is_shown_with_it_by_root(elsewhere: Elsewhere) -> None:
    if os.geteuid() != 0:
        pytest.skip("the kernel takes mounts apart for root only")
    done = elsewhere(_FOLDER + 'exec "$1" -c "$2" "$top"', _SHOWN)
    assert done.returncode == 0, done.stderr
    _, seen, refused = done.stdout.splitlines()
    assert seen == r"['0\n', '1\n', '2\n']"
    assert "Read-only file system" in refused


def test_a_folder_that_cannot_be_shown_without_its_sockets_is_refused_by_name(elsewhere: Elsewhere) -> None:
    """Locked mounts below it: the kernel shows it only as it is, with all that is in it."""
    inner = "unshare --user --map-root-user --mount"
    done = elsewhere(_FOLDER + 'exec $3 "$1" -c "$2" "$top"', _SHOWN, inner)
    assert done.returncode == 0, done.stderr
    top, told, *_ = done.stdout.splitlines()
    assert told == f"cannot show {top} in a sandbox: {top}/a is mounted below it, and cannot be left out or shown"


def test_a_folder_whose_file_system_takes_no_overlay_is_refused_with_the_reason(elsewhere: Elsewhere) -> None:
    """An overlay over an overlay is as deep as the kernel goes."""
    if os.geteuid() != 0:
        pytest.skip("only root can build a file system here that takes no overlay")
    steps = """
base=$(mktemp -d)
mount -t tmpfs tmpfs "$base"
for name in a b c d e f g; do mkdir "$base/$name"; done
mount -t overlay overlay -o "lowerdir=$base/a:$base/b" "$base/c"
mount -t overlay overlay -o "lowerdir=$base/c:$base/d" "$base/e"
exec "$1" -c "$2" "$base/e"
"""
    done = elsewhere(steps, _SHOWN)
    assert done.returncode == 0, done.stderr
    told, *_ = done.stdout.splitlines()
    assert (
        told
        == "cannot show a folder at /data in a sandbox: overlayfs does not support its file system (Invalid argument)"
    )
