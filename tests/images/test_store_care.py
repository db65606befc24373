"""The store of images is its owner's alone, and survives full disks, kills and company."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ramet.isolation.own_processes import landlock
from tests.images.stores import SECONDS, ImageFolder

SAVE = """
import sys
from ramet import RametError, Sandbox
with Sandbox() as sandbox:
    sandbox.run_code(sys.argv[1])
    with sandbox.snapshot() as snapshot:
        try:
            snapshot.save("loaded")
            print("saved")
        except RametError as error:
            print("not saved:", error)
    print(sandbox.run_code("1 + 1").text)
"""


def test_folders_and_files_are_only_their_owners(warm_store: ImageFolder) -> None:
    for path in (warm_store.folder, *warm_store.folder.rglob("*")):
        about = path.lstat()
        assert about.st_uid == os.geteuid()
        assert stat.S_IMODE(about.st_mode) in ((0o700,) if stat.S_ISDIR(about.st_mode) else (0o600,)), path


def test_the_worker_of_a_server_reads_neither_the_key_nor_an_image(warm_store: ImageFolder, tmp_path: Path) -> None:
    if landlock.version() < 1:
        pytest.skip("Landlock is missing")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    program = """
    import os, sys
    from ramet.doors.http.processes.confined_worker import lock_down
    before = os.path.getsize(sys.argv[2])
    lock_down(sys.argv[1])
    for path in sys.argv[2:]:
        try:
            os.open(path, os.O_RDONLY)
            print("read")
        except PermissionError:
            print("refused")
    """
    images = (warm_store.folder / "key", warm_store.image / "manifest.json", warm_store.image)
    said = warm_store.program(program, str(state), *map(str, images))
    assert said.split() == ["refused"] * 3


def _linked(folder: Path) -> None:
    shutil.move(folder / "images", folder.parent / "elsewhere")
    (folder / "images").symlink_to(folder.parent / "elsewhere")


def _open_to_others(folder: Path) -> None:
    (folder / "images").chmod(0o777)


def _writable_key(folder: Path) -> None:
    (folder / "key").chmod(0o666)


def _linked_manifest(folder: Path) -> None:
    (image,) = (folder / "images").iterdir()
    shutil.move(image / "manifest.json", folder.parent / "manifest.json")
    (image / "manifest.json").symlink_to(folder.parent / "manifest.json")


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("change", [_linked, _open_to_others, _writable_key, _linked_manifest])
def test_what_others_could_have_written_is_not_used(warm_store: ImageFolder, change: object) -> None:
    change(warm_store.folder)  # type: ignore[operator]
    found = warm_store.run("1 + 1")
    assert found["results"] == ["2"]
    assert found["images"]["poured"] == 0


@pytest.mark.deep("restarts")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_leaves_the_old_image_and_no_rest(store: ImageFolder, tmp_path: Path) -> None:
    store.folder.mkdir(parents=True, mode=0o700)
    store.folder.parent.chmod(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120m,mode=700", "tmpfs", store.folder], check=True)
    try:
        assert store.program(SAVE, "x = 1").split() == ["saved", "2"]
        said = store.program(SAVE, "import os; x = os.urandom(300 << 20)").splitlines()
        assert said[0].startswith("not saved: ")
        assert said[-1] == "2"
        assert not [path.name for path in store.images() if path.name.startswith(".")]
        assert store.run("x", template="loaded")["results"] == ["1"]
        # Filled by others while it is written: the program that writes meets the end of the disk itself.
        program = """
        import os, sys
        from ramet import RametError, Sandbox
        with Sandbox("loaded") as sandbox:
            sandbox.run_code("import os; y = os.urandom(50 << 20)")
            free = os.statvfs(sys.argv[1])
            with open(sys.argv[1] + "/others", "wb") as file:
                file.write(bytes(free.f_bavail * free.f_frsize - (5 << 20)))
            with sandbox.snapshot() as snapshot:
                try:
                    snapshot.save("loaded")
                except RametError as error:
                    print("not saved")
            print(sandbox.run_code("len(y)").text)
        """
        assert store.program(program, str(store.folder)).splitlines() == ["not saved", str(50 << 20)]
        os.unlink(store.folder / "others")
        assert store.run("x", template="loaded")["results"] == ["1"]
    finally:
        subprocess.run(["umount", "-l", store.folder], check=True)


@pytest.mark.deep("load")
def test_engines_save_load_remove_and_sweep_in_one_store_at_once(store: ImageFolder) -> None:
    program = """
    import sys
    from ramet import RametError, Sandbox
    me = sys.argv[1]
    for turn in range(4):
        with Sandbox() as sandbox:
            sandbox.run_code(f"who = {me!r}; turn = {turn}")
            with sandbox.snapshot() as snapshot:
                snapshot.save("ours")
                snapshot.save(f"mine-{me}")
    with Sandbox("ours") as sandbox:
        assert sandbox.run_code("who").value in ("'a'", "'b'", "'c'")
    with Sandbox(f"mine-{me}") as sandbox:
        print(sandbox.run_code("who, turn").text)
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(store.cache)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    engines = [
        subprocess.Popen([*command, name], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in "abc"
    ]
    ended = [(*engine.communicate(timeout=SECONDS * 2), engine.returncode) for engine in engines]
    for name, (said, errors, code) in zip("abc", ended, strict=True):
        assert code == 0, errors
        assert said.strip() == f"({name!r}, 3)"
    assert store.run("turn", template="ours")["results"] == ["3"]
    assert not [path for path in store.images() if path.name.startswith(".")]


@pytest.mark.deep("load")
def test_many_clients_save_at_once(store: ImageFolder) -> None:
    program = """
    import threading
    from ramet import Sandbox
    with Sandbox() as sandbox:
        sandbox.run_code("x = 7")
        with sandbox.snapshot() as snapshot:
            errors = []
            def save(number):
                try:
                    snapshot.save(f"name-{number % 8}")
                except Exception as error:
                    errors.append(repr(error))
            threads = [threading.Thread(target=save, args=(number,)) for number in range(64)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            print(len(errors), errors[:2])
    """
    assert store.program(program).strip() == "0 []"
    assert store.run("x", template="name-3")["results"] == ["7"]
    assert len([name for name in store.names() if name.startswith("saved-")]) == 8
