"""Persistent sandboxes: they survive the end of their program, told which cells are missing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from ramet import InvalidArgument, Sandbox, SandboxClosed
from ramet.isolation.files import cache_folders
from tests.behaviour.waiting import wait_until
from tests.images.states import LOOK, SEEN, STATE
from tests.images.stores import SECONDS, ImageFolder

# Waits until the checkpoint of all cells so far is on disk.
_WRITTEN = """
import glob, json, os, time
def images():
    return sorted(os.readlink(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}") + open(path).read()
                  for path in glob.glob(os.environ["XDG_CACHE_HOME"] + "/ramet/images/names/space-*"))
def written(before):
    end = time.monotonic() + 60
    while images() == before:
        assert time.monotonic() < end, "no checkpoint was written"
        time.sleep(0.01)
"""

_BEGIN = (
    _WRITTEN
    + """
import sys
from ramet import Sandbox
s = Sandbox(persistent=True, checkpoint_seconds=0.1)
written([])
before = images()
assert s.run_code(sys.argv[1]).ok
written(before)
s.extend(timeout_seconds=100000)
"""
)


def begin(store: ImageFolder, code: str, then: str) -> str:
    """Run a program that makes a sandbox, waits until a cell is on disk, goes on, and is killed. Returns its id."""
    return killed(store, _BEGIN + textwrap.dedent(then), code)


def killed(store: ImageFolder, source: str, *arguments: str) -> str:
    """Run a program that makes a sandbox ``s``, and is killed. Returns its id."""
    source += "\nprint(s.id, flush=True)\nos.kill(os.getpid(), 9)\n"
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(store.cache)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip().splitlines()[-1]


_RESUME = """
import json, sys
from ramet import Sandbox
s = Sandbox.resume(sys.argv[1])
results = [s.run_code(code) for code in json.loads(sys.argv[2])]
print(json.dumps({
    "id": s.id, "texts": [r.text for r in results], "stderr": results[0].stderr, "restored": results[0].restored,
    "missing": [[cell.cell_id, cell.code] for cell in s.missing_cells],
    "steps": [point.cell_id for point in s.history()],
}))
s.close()
"""


def resume(store: ImageFolder, sandbox_id: str, *cells: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.program(_RESUME, sandbox_id, json.dumps(cells)))
    return found


@pytest.mark.promise("persistent-survives")
def test_a_killed_program_costs_the_cells_since_the_last_checkpoint(warm_store: ImageFolder) -> None:
    sandbox_id = begin(warm_store, STATE, "s.run_code('numbers.clear()'); s.run_code('numbers = 5')")
    found = resume(warm_store, sandbox_id, *LOOK)
    assert found["id"] == sandbox_id
    # The last cells may have been written as well, or not: what is there and what is missing agree.
    missing = [cell_id for cell_id, _ in found["missing"]]
    assert {(): "TypeError", (3,): "(0, ", (2, 3): "(499500, "}[tuple(missing)] in found["texts"][0]
    if missing == [2, 3]:
        assert "back at the state after cell 1" in found["stderr"]
        assert "cells 2, 3" in found["stderr"]
        assert found["restored"] is True
        assert found["texts"][1:] == SEEN[1:]


@pytest.mark.deep("restarts")
def test_closing_keeps_its_state_until_it_is_discarded(warm_store: ImageFolder) -> None:
    made = warm_store.program(
        """
        from ramet import Sandbox
        with Sandbox(persistent=True) as s:
            s.run_code("x = 41; open('/root/note', 'w').write('kept')")
            print(s.id)
        """
    ).strip()
    for number in range(2):
        found = resume(warm_store, made, "x + 1, open('/root/note').read()")
        assert (found["texts"], found["missing"]) == (["(42, 'kept')"], []), number
    said = warm_store.program(
        """
        import sys
        from ramet import Sandbox, SandboxClosed
        print([row.id for row in Sandbox.kept()])
        Sandbox.discard(sys.argv[1])
        print(Sandbox.kept())
        try:
            Sandbox.resume(sys.argv[1])
        except SandboxClosed as error:
            print(error.hint)
        """,
        made,
    )
    assert said.splitlines() == [f"['{made}']", "[]", "Sandbox.kept() lists those that can be resumed"]
    assert [name for name in warm_store.names() if name.startswith("space-")] == []


def test_a_state_that_is_written_when_the_program_ends_is_written_to_the_end(warm_store: ImageFolder) -> None:
    program = (
        _WRITTEN
        + """
import gc
from ramet import Sandbox
s = Sandbox(persistent=True, checkpoint_seconds=1000)
written([])
assert s.run_code("import os; x = 2; data = os.urandom(100 << 20)").ok
print(s.id)
del s
gc.collect()
"""
    )
    sandbox_id = warm_store.program(program).strip()
    look = """
    import sys
    from ramet import Sandbox
    with Sandbox.resume(sys.argv[1]) as s:
        print(s.missing_cells, s.run_code("x, len(data) >> 20").value)
    Sandbox.discard(s.id)
    """
    assert warm_store.program(look, sandbox_id).strip() == "() (2, 100)"


def test_one_that_is_alive_in_another_program_is_refused(warm_store: ImageFolder) -> None:
    said = warm_store.program(
        """
        import os, subprocess, sys
        from ramet import Sandbox
        other = "import sys; from ramet import Sandbox\\ntry: Sandbox.resume(sys.argv[1])\\n" \
            "except Exception as error: print(error.message)"
        with Sandbox(persistent=True) as s:
            s.run_code("x = 1"); s.hibernate()
            done = subprocess.run([sys.executable, "-c", other, s.id], capture_output=True, text=True)
            print(done.stdout.strip())
            here = Sandbox.resume(s.id)
            print(here.run_code("x").value)
            here.close()
        """
    )
    assert said.splitlines() == ["the sandbox is alive in another engine", "1"]


@pytest.mark.deep("load")
def test_a_hibernated_sandbox_survives_a_killed_program(warm_store: ImageFolder) -> None:
    sandbox_id = begin(warm_store, STATE, "s.hibernate()")
    found = resume(warm_store, sandbox_id, *LOOK)
    assert (found["texts"], found["missing"]) == (SEEN, [])


def test_an_id_that_is_not_kept_is_told_so() -> None:
    with pytest.raises(SandboxClosed, match="not persistent, or was discarded"):
        Sandbox.resume("sbx_" + "0" * 32)
    with pytest.raises(InvalidArgument):
        Sandbox.resume("")


@pytest.mark.deep("load")
def test_an_engine_that_is_killed_costs_the_cells_since_the_last_checkpoint(warm_store: ImageFolder) -> None:
    """The program lives on, and resumes its sandbox in its next engine."""
    said = warm_store.program(
        _BEGIN
        + """
import signal
from ramet import RametError
from tests.processes import descendants
s.run_code("y = 1")
for pid in descendants(os.getpid()):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
try:
    s.run_code("1")
except RametError as error:
    print(type(error).__name__)
again = Sandbox.resume(s.id)
print(again.run_code("x").value, again.run_code("'y' in globals()").value == str(not again.missing_cells))
again.close()
""",
        "x = 7",
    )
    assert said.split() == ["EngineLost", "7", "True"]


_FULL = """
import os, sys
from ramet import RametError, Sandbox
s = Sandbox(persistent=True, checkpoint_seconds=3600)
s.run_code("x = 1")
s.hibernate()
s.run_code("import os; x = os.urandom(8 << 20)")
with open(sys.argv[1], "wb", buffering=0) as file:
    try:
        while file.write(bytes(1 << 20)) == 1 << 20:
            pass
    except OSError:
        pass
def attempt(what):
    try:
        return what()
    except RametError as error:
        print(error.message)
attempt(s.hibernate)
print(s.info().state, s.run_code("len(x)").value)
s.close()
attempt(lambda: Sandbox.resume(s.id))
if len(sys.argv) == 2:
    os.unlink(sys.argv[1])
    again = Sandbox.resume(s.id)
    print(again.missing_cells, again.run_code("len(x)").value)
else:
    print(s.id)
"""


@pytest.mark.deep("restarts")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_on_a_full_disk_the_last_state_stays_in_memory_and_the_one_before_on_disk(store: ImageFolder) -> None:
    store.folder.mkdir(parents=True, mode=0o700)
    store.folder.parent.chmod(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m,mode=700", "tmpfs", store.folder], check=True)
    try:
        store.program("from ramet import Sandbox; Sandbox().snapshot().save('base')")  # and the image of its template
        refused, awake, unwritten, whole = store.program(_FULL, str(store.folder / "others")).splitlines()
        assert refused.startswith("the state of the sandbox could not be written to disk: ")
        assert awake == f"idle {8 << 20}"
        assert "is in the memory of this program only" in unwritten
        assert whole == f"() {8 << 20}"
        # The end of the program costs what could not be written, and says which cells these are.
        sandbox_id = store.program(_FULL, str(store.folder / "others"), "stay").split()[-1]
        os.unlink(store.folder / "others")
        found = resume(store, sandbox_id, "x")
        assert ([cell_id for cell_id, _ in found["missing"]], found["texts"][0][0]) == ([2, 3], "1")
    finally:
        subprocess.run(["umount", "-l", store.folder], check=True)


def test_every_kind_of_step_is_in_the_history_after_a_resume() -> None:
    with Sandbox(persistent=True, recover="fresh") as s:
        s.run_code("x = 1")
        with s.snapshot() as snapshot:
            s.restore(snapshot)
        s.run_code("import os; os._exit(3)")
        s.run_code("x = 2")
        with s.fork() as (child,):
            child.run_code("y = 3")
            s.take(child, names=["y"])
    with Sandbox.resume(s.id) as again:
        found = [(point.kind, point.code) for point in again.history()]
        assert again.run_code("x, y").value == "(2, 3)"
    Sandbox.discard(s.id)
    assert [kind for kind, _ in found] == ["start", "cell", "restore", "cell", "restart", "cell", "take"]
    assert found[-1][1].startswith("y of ")


_MUCH = """
import os
from ramet import Sandbox
s = Sandbox(persistent=True, checkpoint_seconds=3600)
s.run_code("x = 1")
s.hibernate()  # what comes after this is not written
s.run_code("x = 2")
child, = s.fork()
child.run_code("y = 3")
s.take(child, names=["y"])
s.undo()
with s.snapshot() as snapshot:
    s.restore(snapshot)
s.upload(b"data", "/root/file")
s.set("z", 1)
s.merge_into(child)
"""


def test_what_was_done_besides_cells_is_told_when_it_is_missing(warm_store: ImageFolder) -> None:
    """A sandbox is not silently back in a state that its owner had left."""
    sandbox_id = killed(warm_store, _MUCH)
    found = resume(warm_store, sandbox_id, "x", "1")
    assert found["texts"][0].startswith("1")
    assert "back at the state after cell 1, and these are missing: the work of cell 2, " in found["stderr"]
    for what in (
        "what it took from sbx_",
        "the return to the state after cell 2",
        "the return to the state of a snapshot",
        "files or values that were written from outside",
        "what it took over from sbx_",
    ):
        assert found["stderr"].count(what) == 1, what
    assert "ramet:" not in found["texts"][1]


def test_a_merged_winner_leaves_nothing_on_disk() -> None:
    folder = cache_folders.find("images")
    assert folder is not None
    with Sandbox() as parent, Sandbox(persistent=True) as winner:
        winner.run_code("x = 1")
        winner.hibernate()
        on_disk = [
            Path(folder, place, cache_folders.space_image_name("", winner.id)) for place in ("names", "sandboxes")
        ]
        assert [path.exists() for path in on_disk] == [True, True]
        parent.merge_into(winner)
        wait_until(lambda: not any(path.exists() for path in on_disk), "its image is gone")
        assert parent.run_code("x").value == "1"


def test_a_resume_waits_until_an_engine_that_was_killed_has_ended() -> None:
    """The kernel lets go of its files some time after the kill."""
    folder = cache_folders.find("images")
    assert folder is not None
    with Sandbox(persistent=True) as s:
        s.run_code("x = 1")
    journal = os.open(Path(folder, "sandboxes", cache_folders.space_image_name("", s.id)), os.O_RDWR)
    fcntl.flock(journal, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as threads:
        resuming = threads.submit(Sandbox.resume, s.id)
        assert wait([resuming], timeout=0.3).not_done
        os.close(journal)
        with resuming.result(SECONDS) as again:
            assert again.run_code("x").value == "1"
    Sandbox.discard(s.id)
