"""Which files of two pods differ; that random ones are told right is in test_file_images."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.protocol.values.differences import FileChange, FileState
from tests.fork.files_inside import run_inside

_IMPORTS = """
import hashlib
from dataclasses import asdict
from ramet.errors import LimitReached
from ramet.isolation import _files
from ramet.isolation.files import differences
from ramet.isolation.files import layers
from ramet.isolation.files.differences import diff_files
from ramet.isolation.files.layers import FileImage
from ramet.protocol.values.specs import MountSpec

def put(pod, path, data):
    with open(below(pod, path), "wb") as file:
        file.write(data)
"""


def test_what_is_told_of_each_kind_of_change(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
async def test(world):
    pod = await world.pod()
    for name in ("kept", "changed", "removed", "mode"):
        put(pod, f"/srv/{name}", b"before")
    os.symlink("one", below(pod, "/srv/link"))
    image = FileImage.capture(pod)
    child = await world.pod(image)
    image.close()
    nothing = diff_files(pod, child)
    put(child, "/srv/changed", b"after!")
    os.unlink(below(child, "/srv/removed"))
    os.chmod(below(child, "/srv/mode"), 0o600)
    os.unlink(below(child, "/srv/link"))
    os.symlink("two", below(child, "/srv/link"))
    os.mkdir(below(child, "/srv/folder"))
    put(child, "/srv/folder/file", b"new")
    put(child, "/dev/shm/block", b"")
    os.utime(below(child, "/srv/kept"), (1, 1))  # is no change of the file
    found = diff_files(pod, child)
    backwards = diff_files(child, pod)
    below_folder = [change.path for change in diff_files(pod, child, ["/srv/folder", "/nowhere"])]
    for each in (pod, child):
        await each.close()
    return [nothing, [asdict(change) for change in found], [change.change for change in backwards], below_folder]
"""
    answer = run_inside(_IMPORTS + code, monkeypatch)
    assert isinstance(answer, list)
    nothing, found, backwards, below_folder = answer
    changes = {change.path: change for change in map(FileChange.read, found)}
    before = FileState("file", 6, 0o644, hashlib.sha256(b"before").hexdigest())
    assert nothing == []
    assert {path: change.change for path, change in changes.items()} == {
        "/dev/shm/block": "added",
        "/srv/changed": "modified",
        "/srv/folder": "added",
        "/srv/folder/file": "added",
        "/srv/link": "modified",
        "/srv/mode": "modified",
        "/srv/removed": "removed",
    }
    assert backwards == ["removed", "modified", "removed", "removed", "modified", "modified", "added"]
    assert below_folder == ["/srv/folder", "/srv/folder/file"]
    assert changes["/srv/removed"] == FileChange("/srv/removed", "removed", before, None)
    assert changes["/srv/mode"] == FileChange("/srv/mode", "modified", before, replace(before, mode=0o600))
    link = FileState("link", 3, 0o777, target="one")
    assert changes["/srv/link"] == FileChange("/srv/link", "modified", link, replace(link, target="two"))


def test_shared_layers_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both have from one layer is known to be equal."""
    code = """
class Watched:
    def compare_files(self, one, other, name, *bounds):
        reads.append(name)
        return _files.compare_files(one, other, name, *bounds)

reads = []

async def test(world):
    layers.SMALL_ENTRIES = 0
    pod = await world.pod()
    for number in range(100):
        put(pod, f"/srv/{number}", b"%d" % number)
    image = FileImage.capture(pod)
    one, other = await world.pod(image), await world.pod(image)
    image.close()
    differences._files = Watched()
    put(one, "/srv/7", b"changed")
    put(one, "/srv/8", b"8")
    found = [change.path for change in diff_files(one, other)]
    for each in (pod, one, other):
        await each.close()
    return [found, sorted(reads)]
"""
    assert run_inside(_IMPORTS + code, monkeypatch) == [["/srv/7"], ["7", "8", "srv"]]


def test_folders_of_the_host_and_odd_files_are_not_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of the host")
    code = f"""
async def test(world):
    pod = await world.pod(mounts=[MountSpec({str(tmp_path)!r}, "/data/host", True)])
    other = await world.pod()
    os.mkfifo(below(pod, "/data/fifo"))
    os.symlink("/data/host", below(pod, "/data/link"))
    server = socket.socket(socket.AF_UNIX)
    folder = os.open(below(pod, "/data"), os.O_RDONLY)
    server.bind(f"/proc/self/fd/{{folder}}/socket")
    found = [(change.path, change.type) for change in diff_files(other, pod)]
    server.close()
    os.close(folder)
    for each in (pod, other):
        await each.close()
    return found
"""
    assert run_inside(_IMPORTS + code, monkeypatch) == [
        ["/data", "folder"],
        ["/data/fifo", "other"],
        ["/data/link", "link"],
        ["/data/socket", "other"],
    ]


def test_too_many_changes_are_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
async def test(world):
    differences.MOST_CHANGES = 50
    one, other = await world.pod(), await world.pod()
    for number in range(60):
        put(one, f"/srv/{number}", b"")
    put(one, "/home/one", b"")
    try:
        diff_files(one, other)
        told = None
    except LimitReached as error:
        told = str(error)
    less = [change.path for change in diff_files(one, other, ["/home"])]
    for each in (one, other):
        await each.close()
    return [told is not None and "paths" in told, less]
"""
    assert run_inside(_IMPORTS + code, monkeypatch) == [True, ["/home/one"]]


def test_holes_are_equal_without_being_read_and_contents_are_found_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 2^60 bytes takes no room in a sandbox, and years to read."""
    code = """
def sparse(pod, path, *places):
    with open(below(pod, path), "wb") as file:
        file.truncate(1 << 60)
        for at, data in places:
            file.seek(at)
            file.write(data)

async def test(world):
    one, other = await world.pod(), await world.pod()
    far = (1 << 60) - 5000
    for pod in (one, other):
        sparse(pod, "/srv/empty")
        sparse(pod, "/srv/same", (7, b"a" * 100_000), (far, b"b"))
    sparse(one, "/srv/behind", (far, b"1"))
    sparse(other, "/srv/behind", (far, b"2"))
    sparse(one, "/srv/zeros", (1 << 30, bytes(8192)))  # zeros that are there are like zeros that are not
    sparse(other, "/srv/zeros")
    sparse(one, "/srv/only-here")
    put(one, "/srv/dense", bytes(300_000) + b"x" + bytes(300_000))
    with open(below(other, "/srv/dense"), "wb") as file:
        file.truncate(600_001)
        file.seek(300_000)
        file.write(b"x")
    found = [asdict(change) for change in diff_files(one, other)]
    for each in (one, other):
        await each.close()
    return found
"""
    answer = run_inside(_IMPORTS + code, monkeypatch)
    assert isinstance(answer, list)
    state = FileState("file", 1 << 60, 0o644)
    assert list(map(FileChange.read, answer)) == [
        FileChange("/srv/behind", "modified", state, state),
        FileChange("/srv/only-here", "removed", state, None),
    ]


def test_what_is_too_much_to_be_compared_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
async def test(world):
    differences.MOST_READ_BYTES = 200_000
    one, other = await world.pod(), await world.pod()
    for pod in (one, other):
        put(pod, "/srv/1-large", b"a" * 150_000)
        put(pod, "/srv/2-beyond", b"a" * 150_000)
        put(pod, "/srv/3-other-size", b"a" * (150_000 + (pod is one)))
    found = [(change.path, change.change, change.approximate) for change in diff_files(one, other)]
    digests = {state.digest for change in diff_files(one, other) for state in (change.before, change.after)}
    for each in (one, other):
        await each.close()
    return [found, list(digests)]
"""
    assert run_inside(_IMPORTS + code, monkeypatch) == [
        [["/srv/2-beyond", "modified", True], ["/srv/3-other-size", "modified", False]],
        [None],
    ]


def test_a_comparison_ends_when_it_is_asked_to_or_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
from ramet.isolation.files.walks import Stop, WalkCancelled

def told(stop):
    try:
        return len(diff_files(one, other, None, stop))
    except (LimitReached, WalkCancelled) as error:
        return f"{type(error).__name__}: {error}"

async def test(world):
    global one, other
    one, other = await world.pod(), await world.pod()
    for pod in (one, other):
        put(pod, "/srv/file", b"a" * 150_000)
    asked = Stop()
    asked.ask()
    answers = [told(Stop()), told(asked)]
    differences.READING_SECONDS = -1
    answers.append(told(Stop()))
    differences.WALKING_SECONDS = -1
    answers.append(told(Stop()))
    for each in (one, other):
        await each.close()
    return answers
"""
    answer = run_inside(_IMPORTS + code, monkeypatch)
    assert isinstance(answer, list)
    assert answer[:3] == [0, "WalkCancelled: ", 1]
    assert "LimitReached: there are too many files to compare within" in answer[3]
    assert "paths" in answer[3]
