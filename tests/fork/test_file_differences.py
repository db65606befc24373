"""Which files of two pods differ; that random ones are told right is in test_file_images."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.protocol.differences import FileChange, FileState
from tests.fork.files_inside import run_inside

_IMPORTS = """
import hashlib
from dataclasses import asdict
from ramet.errors import LimitReached
from ramet.isolation import _files, differences, layers
from ramet.isolation.differences import diff_files
from ramet.isolation.layers import FileImage
from ramet.protocol.specs import MountSpec

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
    def same_file(self, one, other, name):
        reads.append(name)
        return _files.same_file(one, other, name)

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
