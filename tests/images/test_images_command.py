"""ramet images: list, verify, remove."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.images.stores import ImageFolder

SAVE = """
from ramet import Sandbox
with Sandbox() as sandbox:
    sandbox.run_code("import os; data = os.urandom(1 << 20); open('/root/file', 'w').write('x' * 5000)")
    with sandbox.snapshot() as snapshot:
        snapshot.save("loaded")
"""


def ramet(store: ImageFolder, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "ramet"), "images", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "XDG_CACHE_HOME": str(store.cache)},
    )


@pytest.fixture
def saved(store: ImageFolder) -> ImageFolder:
    store.program(SAVE)
    return store


@pytest.mark.deep("restarts")
def test_images_are_listed_checked_and_removed(saved: ImageFolder) -> None:
    rows = json.loads(ramet(saved, "--json").stdout)
    assert [(row["name"], row["kind"]) for row in rows] == [("loaded", "snapshot"), ("default", "template")]
    assert all(row["size_bytes"] > 1 << 20 for row in rows)
    assert "loaded" in ramet(saved).stdout
    checked = ramet(saved, "verify")
    assert checked.stdout.splitlines() == ["ok      snapshot loaded", "ok      template default"]
    assert checked.returncode == 0
    assert ramet(saved, "rm", "loaded").returncode == 0
    assert [row["kind"] for row in json.loads(ramet(saved, "ls", "--json").stdout)] == ["template"]
    assert ramet(saved, "rm", "--templates").returncode == 0
    assert json.loads(ramet(saved, "--json").stdout) == []
    assert saved.images() == []
    assert saved.run("1 + 1")["results"] == ["2"]


@pytest.mark.parametrize(
    "part", ["pages", *(pytest.param(part, marks=pytest.mark.deep("attacks")) for part in ("files", "state"))]
)
def test_a_single_wrong_byte_is_found(saved: ImageFolder, part: str) -> None:
    (image,) = (path for path in saved.images() if (path / "state").exists())
    data = bytearray((image / part).read_bytes())
    # In the middle of a page that is not zero.
    place = next(at for at in range(len(data) // 2, len(data)) if data[at])
    data[place] ^= 1
    (image / part).write_bytes(data)
    checked = ramet(saved, "verify", "loaded")
    assert checked.returncode == 1
    assert checked.stdout.startswith("broken  snapshot loaded: ")


_KEPT = """
from ramet import Sandbox
with Sandbox(persistent=True) as sandbox:
    sandbox.run_code("x = 1")
    print(sandbox.id)
"""
_ALIVE = """
import subprocess, sys
from ramet import Sandbox
with Sandbox(persistent=True) as sandbox:
    sandbox.run_code("x = 1")
    sandbox.hibernate()
    code = "import sys; from ramet.cli.main import main; sys.exit(main(['images', 'rm', sys.argv[1]]))"
    done = subprocess.run([sys.executable, "-c", code, sandbox.id], capture_output=True, text=True)
    print(done.returncode, done.stderr, sandbox.run_code("x").value)
Sandbox.discard(sandbox.id)
"""


def test_sandboxes_on_disk_are_listed_by_their_ids_and_can_be_removed(warm_store: ImageFolder) -> None:
    kept = warm_store.program(_KEPT).strip()
    rows = json.loads(ramet(warm_store, "--json").stdout)
    assert [(row["name"], row["kind"]) for row in rows if row["kind"] != "template"] == [(kept, "sandbox")]
    assert f"ok      sandbox {kept}" in ramet(warm_store, "verify", kept).stdout
    assert ramet(warm_store, "rm", kept).stdout.startswith("removed 1 image, ")
    assert [name for name in warm_store.names() if name.startswith("space-")] == []
    assert list((warm_store.folder / "sandboxes").iterdir()) == []


@pytest.mark.deep("restarts")
def test_a_sandbox_that_a_program_has_is_not_removed_under_it(warm_store: ImageFolder) -> None:
    said = warm_store.program(_ALIVE)
    assert said.startswith("1 ramet: the sandbox is alive in another engine")
    assert said.split()[-1] == "1"


def test_what_cannot_be_removed_is_told(store: ImageFolder) -> None:
    assert (
        "nothing here is named 'other'; there are: no snapshots and no sandboxes" in ramet(store, "rm", "other").stderr
    )
    assert "say what to remove" in ramet(store, "rm").stderr
