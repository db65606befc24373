"""Points that memory has no room for: they go to disk, and every way back works as before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet import PointUnknown, Sandbox
from ramet.transport import embedded
from tests.behaviour.waiting import wait_until
from tests.fork import loop_work
from tests.fork.relatives import run, value
from tests.images.stores import ImageFolder


@pytest.fixture
def no_memory_for_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageFolder]:
    """An engine of its own whose histories may take no memory, and its store."""
    yield from _engine(tmp_path, monkeypatch, "--history-memory-mib", "0")


@pytest.fixture
def little_disk_for_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageFolder]:
    yield from _engine(tmp_path, monkeypatch, "--history-memory-mib", "0", "--history-disk-mib", "1")


def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Iterator[ImageFolder]:
    before = list(embedded.engine_options)
    embedded.close_engine()
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    embedded.engine_options += options
    yield ImageFolder(cache)
    embedded.close_engine()
    embedded.engine_options[:] = before


def _points(store: ImageFolder) -> list[str]:
    return [name for name in store.names() if name.startswith("past-")]


def _on_disk(sandbox: Sandbox, *point_ids: str) -> None:
    def there() -> bool:
        return all(point.kept_in == "disk" for point in sandbox.history() if point.id in point_ids)

    wait_until(there, f"{point_ids} are on disk")


@pytest.mark.promise("points-on-disk")
def test_undo_rewind_and_forks_lead_to_states_on_disk_and_nothing_is_left(no_memory_for_points: ImageFolder) -> None:
    with Sandbox(history=20) as sandbox:
        run(sandbox, "import threading; lock = threading.RLock(); _ = lock.acquire(); gate = threading.Event()")
        run(sandbox, "threading.Thread(target=gate.wait, daemon=True).start(); x = 2; _ = open('f', 'w').write('two')")
        run(sandbox, "x = 3; gate.set(); _ = open('f', 'w').write('three')")
        run(sandbox, "x = 4")
        _on_disk(sandbox, "p1", "p2", "p3")
        found = sandbox.history()
        assert all(point.kept_bytes > 0 for point in found[1:4])
        assert found.disk_bytes >= sum(point.kept_bytes for point in found[1:4]) > 0
        assert "kept on disk" in str(found)
        (child,) = sandbox.fork(at="p2")
        with child:
            look = "x, open('f').read(), threading.active_count(), lock._is_owned(), gate.is_set()"
            assert value(child, look) == (2, "two", 2, True, False)
            assert sandbox.undo(2).point.id == "p2"
            assert value(sandbox, look) == (2, "two", 2, True, False)
            sandbox.close()
            # The child has the same images, also when its parent is gone.
            child.rewind("p1")
            assert value(child, "'x' in globals(), threading.active_count()") == (False, 1)
    wait_until(lambda: not _points(no_memory_for_points), "the images are removed")


def test_a_crash_costs_one_cell_also_when_the_last_state_is_on_disk(no_memory_for_points: ImageFolder) -> None:
    with Sandbox(history=20) as sandbox:
        loop_work.begin(sandbox)
        run(sandbox, "x = 1")
        sandbox.files.write("/root/f", "from outside")
        run(sandbox, "x = 2")
        _on_disk(sandbox, "p1", sandbox.history()[-2].id)
        assert sandbox.run_code("import os; os._exit(3)", timeout=60).state == "restored"
        assert value(sandbox, "x, open('/root/f').read()") == (2, "from outside")
        loop_work.assert_goes_on(sandbox)


@pytest.mark.deep("restarts")
def test_only_as_much_is_written_as_the_disk_budget_allows_and_history_says_why(
    little_disk_for_points: ImageFolder,
) -> None:
    with Sandbox(history=20) as sandbox:
        for number in range(4):
            run(sandbox, f"x = {number}")
        wait_until(lambda: not sandbox.history()[1].kept, "the oldest state is dropped")
        assert "disk" in sandbox.history()[1].note
        with pytest.raises(PointUnknown):
            sandbox.rewind("p1")
        run(sandbox, "x = 5")
        sandbox.undo()
        assert value(sandbox, "x") == 3


_KILLED_ENGINE = """
import os, signal, time
from ramet import Sandbox
from ramet.transport import embedded
from tests.walls.family import engine_of
embedded.engine_options[:] = ["--history-memory-mib", "0"]
sandbox = Sandbox(history=20)
for number in range(3):
    sandbox.run_code(f"x = {number}")
while sandbox.history()[1].kept_in != "disk":
    time.sleep(0.01)
print(embedded.default_engine().pid, flush=True)
os.kill(engine_of(embedded.default_engine().pid), signal.SIGKILL)
os._exit(0)
"""


@pytest.mark.deep("restarts")
def test_what_a_killed_engine_left_is_removed_by_the_next_one(store: ImageFolder) -> None:
    store.program(_KILLED_ENGINE)
    assert _points(store)
    store.run("1")
    assert _points(store) == []
    assert os.listdir(store.folder / "engines") == []


@pytest.mark.deep("restarts")
def test_without_images_states_are_dropped_as_memory_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_IMAGES", "off")
    for _ in _engine(tmp_path, monkeypatch, "--history-memory-mib", "0"):
        with Sandbox(history=20) as sandbox:
            for number in range(3):
                run(sandbox, f"x = {number}")
            wait_until(lambda: not sandbox.history()[1].kept, "the oldest state is dropped")
            assert sandbox.history()[1].note == "its memory was needed for sandboxes that were used more recently"


@pytest.mark.deep("restarts")
def test_an_image_that_is_gone_or_broken_costs_only_its_point(no_memory_for_points: ImageFolder) -> None:
    with Sandbox(history=20) as sandbox:
        for number in range(4):
            run(sandbox, f"x = {number}")
        _on_disk(sandbox, "p1", "p2", "p3")
        for image in no_memory_for_points.images():
            if (image / "state").exists():
                (image / "manifest.mac").write_bytes(bytes(32))
        with pytest.raises(PointUnknown, match="its image on disk"):
            sandbox.rewind("p1")
        assert not sandbox.history()[1].kept
        assert value(sandbox, "x") == 3
