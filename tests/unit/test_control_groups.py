"""Which controllers of version 2 are asked for and taken, on a tree of files that answers as the kernel does.

Hosts whose version 2 has more than one of the controllers that limits need are rare among those that test this; the
kernel's own rules are in `tests/walls/test_groups_of_version_2.py`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ramet.isolation.kernel import cgroups
from ramet.protocol.values.specs import Limits

_THREADED = {"cpu", "pids"}


class Tree:
    """Control groups as folders, with the kernel's rules about sharing controllers out where processes stand."""

    def __init__(self, top: Path, controllers: str) -> None:
        self.top = top
        self.writes: list[tuple[str, str]] = []
        top.mkdir()
        self._fill(top, controllers)
        (top / "cgroup.type").unlink()

    def _fill(self, group: Path, controllers: str) -> None:
        files = {"controllers": controllers, "subtree_control": "", "procs": "", "threads": "", "type": "domain"}
        for name, text in files.items():
            (group / f"cgroup.{name}").write_text(f"{text}\n" if text else "")

    def group(self, path: str, processes: str = "") -> Path:
        group = self.top / path
        group.mkdir()
        self._fill(group, (group.parent / "cgroup.subtree_control").read_text().strip())
        (group / "cgroup.procs").write_text(processes)
        return group

    def make(self, folder: str, _owner: int | None) -> bool:
        self.group(os.path.relpath(folder, self.top))
        return True

    def write(self, path: str, value: object) -> None:
        file, text = Path(path), str(value)
        self.writes.append((os.path.relpath(path, self.top), text))
        if file.name != "cgroup.subtree_control":
            file.write_text(text)
            return
        names = {name[1:] for name in text.split()}
        if not names <= set((file.parent / "cgroup.controllers").read_text().split()):
            raise OSError(errno.ENOENT, "no such controller")
        on = set(file.read_text().split())
        if text.startswith("+") and file.parent != self.top and (file.parent / "cgroup.procs").read_text():
            if names - _THREADED:
                raise OSError(errno.EBUSY, "processes stand here")
            (file.parent / "cgroup.type").write_text("domain threaded\n")
        file.write_text(" ".join(sorted(on | names if text.startswith("+") else on - names)) + "\n")

    def sweep(self, folder: str) -> None:
        for file in Path(folder).iterdir():
            file.unlink()
        os.rmdir(folder)


def _stand(monkeypatch: pytest.MonkeyPatch, tree: Tree, own: str) -> None:
    monkeypatch.setattr(cgroups, "_hierarchies", lambda: {"": str(tree.top)})
    monkeypatch.setattr(cgroups, "_own_groups", lambda: {"": own})
    monkeypatch.setattr(cgroups, "_make", tree.make)
    monkeypatch.setattr(cgroups, "_write", tree.write)
    monkeypatch.setattr(cgroups, "sweep", tree.sweep)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A session in a slice, as after a login: the slice is empty and may be shared out, the session holds us."""
    made = Tree(tmp_path / "groups", "cpuset cpu io memory pids")
    made.write(f"{made.top}/cgroup.subtree_control", "+memory +pids +cpu")
    made.group("slice")
    made.group("slice/session", f"{os.getpid()}\n")
    _stand(monkeypatch, made, "/slice/session")
    made.writes.clear()
    return made


def test_every_controller_that_is_there_is_taken(tree: Tree) -> None:
    made = cgroups.delegate(None)
    assert (made.version, sorted(made.folders)) == (2, ["cpu", "memory", "pids"])
    [folder] = made.paths()
    assert Path(folder).parent == tree.top / "slice"
    assert sorted(Path(folder, "cgroup.subtree_control").read_text().split()) == ["cpu", "memory", "pids"]


def test_the_limits_of_a_pod_are_written_for_every_controller(tree: Tree) -> None:
    made = cgroups.delegate(None)
    tree.writes.clear()
    cgroups.PodGroup.create(made, "pod-1", Limits(memory_bytes=1 << 27, pids=24, cpus=0.25, disk_bytes=1 << 30))
    written = {os.path.basename(path): value for path, value in tree.writes}
    assert (written["memory.max"], written["pids.max"]) == (str(1 << 27), "25")
    assert written["cpu.max"] == "25000 100000"


def test_controllers_are_asked_for_all_at_once_and_the_callers_own_group_stays_as_it_was(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write(f"{tree.top}/slice/cgroup.subtree_control", "+memory +pids +cpu")
    own = tree.group("slice/scope", f"{os.getpid()}\n")
    _stand(monkeypatch, tree, "/slice/scope")
    assert sorted(cgroups.delegate(None).folders) == ["cpu", "memory", "pids"]
    asked = [value for path, value in tree.writes if path == "slice/scope/cgroup.subtree_control"]
    assert asked == ["+memory +pids +cpu"]
    assert ((own / "cgroup.type").read_text(), (own / "cgroup.subtree_control").read_text()) == ("domain\n", "")


def test_a_callers_own_group_that_has_no_memory_to_give_is_not_even_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path / "bare", "cpu pids")
    tree.write(f"{tree.top}/cgroup.subtree_control", "+pids +cpu")
    tree.group("slice", f"{os.getpid()}\n")
    tree.group("slice/session", f"{os.getpid()}\n")
    _stand(monkeypatch, tree, "/slice/session")
    tree.writes.clear()
    assert cgroups.delegate(None) == cgroups.NONE
    assert tree.writes == []
    assert (tree.top / "slice" / "cgroup.type").read_text() == "domain\n"


def test_what_was_only_tried_is_taken_back(tree: Tree) -> None:
    before = (tree.top / "slice" / "cgroup.subtree_control").read_text()
    made = cgroups.delegate(None)
    assert made.switched_on == ("memory", "pids", "cpu")
    cgroups.undo(made)
    assert (tree.top / "slice" / "cgroup.subtree_control").read_text().split() == before.split()
    assert [group.name for group in (tree.top / "slice").iterdir() if group.is_dir()] == ["session"]


def test_what_was_on_before_stays_on_when_a_try_is_taken_back(tree: Tree) -> None:
    tree.write(f"{tree.top}/slice/cgroup.subtree_control", "+memory +pids")
    made = cgroups.delegate(None)
    assert made.switched_on == ("cpu",)
    cgroups.undo(made)
    assert (tree.top / "slice" / "cgroup.subtree_control").read_text().split() == ["memory", "pids"]


def _surround(monkeypatch: pytest.MonkeyPatch, tops: dict[str, Path], own: dict[str, str]) -> None:
    monkeypatch.setattr(cgroups, "_hierarchies", lambda: {name: str(top) for name, top in tops.items()})
    monkeypatch.setattr(cgroups, "_own_groups", lambda: own)


def test_the_least_limit_of_memory_above_us_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _surround(monkeypatch, {"": tmp_path}, {"": "/slice/scope"})
    (tmp_path / "slice" / "scope").mkdir(parents=True)
    assert cgroups.memory_limit() is None
    (tmp_path / "slice" / "scope" / "memory.max").write_text("max\n")
    assert cgroups.memory_limit() is None
    (tmp_path / "slice" / "memory.max").write_text("734003200\n")
    assert cgroups.memory_limit() == 734003200
    (tmp_path / "slice" / "scope" / "memory.max").write_text("800000000\n")
    assert cgroups.memory_limit() == 734003200


def test_the_limit_of_a_container_that_sees_its_group_under_another_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _surround(monkeypatch, {"memory": tmp_path}, {"memory": "/docker/1234"})
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert cgroups.memory_limit() is None
    (tmp_path / "memory.limit_in_bytes").write_text("734003200\n")
    assert cgroups.memory_limit() == 734003200


def test_each_kill_around_explains_one_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _surround(monkeypatch, {"": tmp_path}, {"": "/"})
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 1\noom_kill 3\n")
    around = cgroups.Surroundings(cgroups.NONE)
    first, second = around.kills(), around.kills()
    assert not around.explain(first)
    events.write_text("low 0\noom 2\noom_kill 4\n")
    assert around.explain(first)
    assert not around.explain(second)
    assert not cgroups.Surroundings(cgroups.Delegation(2, {"memory": "/a"})).explain(0)
