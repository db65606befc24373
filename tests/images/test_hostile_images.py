"""Images from elsewhere are hostile: each rule, with a forged file that breaks it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet import RametError, Sandbox, Snapshot
from ramet_guest.wire import SCRATCH_START
from tests.fork.relatives import run, value
from tests.images.forging import ExportedFile, as_bytes

STATE = """
import mmap, os, resource, socket
listening = socket.socket(); listening.bind(("127.0.0.1", 8080)); listening.listen()
reading, writing = os.pipe(); os.write(writing, b"held")
shared = mmap.mmap(-1, 1 << 16); shared[:5] = b"hello"
note = open("/root/note.txt", "w+")
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "x.ramet"
    with Sandbox() as sandbox:
        run(sandbox, STATE)
        with sandbox.snapshot() as snapshot:
            snapshot.export(path)
    return path


@pytest.fixture
def forged(exported: Path) -> ExportedFile:
    return ExportedFile(exported)


def assert_refused(forged: ExportedFile, folder: Path, said: str) -> None:
    with pytest.raises(RametError, match=said):
        Snapshot.load(forged.write(folder / "forged.ramet"))
    with Sandbox() as neighbour:  # the engine is as before
        assert value(neighbour, "1 + 1") == 2


@pytest.mark.deep("restarts")
def test_a_file_that_was_only_written_anew_is_loaded(forged: ExportedFile, tmp_path: Path) -> None:
    with Snapshot.load(forged.write(tmp_path / "x.ramet")) as loaded, Sandbox(loaded) as copy:
        assert value(copy, "os.read(reading, 9), shared[:5], listening.getsockname()") == (
            b"held",
            b"hello",
            ("127.0.0.1", 8080),
        )


@pytest.mark.promise("image-from-elsewhere-is-hostile")
def test_resource_limits_are_never_above_the_usual_ones(forged: ExportedFile, tmp_path: Path) -> None:
    wanted = {6: 5000, 7: 1 << 20, 11: 100_000, 13: 40, 14: 99}  # NPROC, NOFILE, SIGPENDING, NICE, RTPRIO
    forged.process["limits"] = [
        [kind, wanted.get(kind, soft), wanted.get(kind, hard)] for kind, soft, hard in forged.process["limits"]
    ]
    with Snapshot.load(forged.write(tmp_path / "x.ramet")) as loaded, Sandbox(loaded) as copy, Sandbox() as usual:
        look = "import resource; [resource.getrlimit(kind) for kind in (6, 7, 11, 13, 14)]"
        for (_, given), (_, allowed) in zip(value(copy, look), value(usual, look), strict=True):
            assert 0 <= given <= allowed


@pytest.mark.promise("image-from-elsewhere-is-hostile")
def test_limits_mounts_and_owner_are_who_loads_it_says(forged: ExportedFile, tmp_path: Path) -> None:
    forged.state["limits"]["with"]["memory_bytes"] = 1 << 50
    forged.state["about"]["spec"]["limits"]["memory_bytes"] = 1 << 50
    forged.state["about"]["spec"]["owner"] = "key_0123456789abcdef"
    forged.state["about"]["spec"]["mounts"] = [{"host": "/etc", "path": "/mnt/host", "writable": True}]
    with Snapshot.load(forged.write(tmp_path / "x.ramet"), memory_mib=512) as loaded, Sandbox(loaded) as copy:
        assert copy.info().limits.memory_bytes == 512 << 20
        assert not value(copy, "os.path.exists('/mnt/host')")


def _trees(forged: ExportedFile) -> None:
    forged.manifest["template"]["interpreter"]["trees"].append("/home")


def _outside(forged: ExportedFile) -> None:
    forged.manifest["files"][0] = "/home/somebody/library.so"


def _above(forged: ExportedFile) -> None:
    forged.manifest["files"][0] = "/usr/../home/somebody/library.so"


def _scratch(forged: ExportedFile) -> None:
    forged.manifest["segments"].insert(0, ["memory", SCRATCH_START, SCRATCH_START + 4096, 3, 2, [], 0, 0])
    forged.manifest["segments"].sort(key=lambda row: row[1])


def _shared_scratch(forged: ExportedFile) -> None:
    forged.state["maps"][0]["with"]["start"] = SCRATCH_START


def _shared_vdso(forged: ExportedFile) -> None:
    forged.state["maps"][0]["with"]["start"] = next(
        start for name, start, _ in forged.manifest["kernels_areas"] if name == "[vdso]"
    )


def _same_pages(forged: ExportedFile) -> None:
    mapped = [row for row in forged.manifest["segments"] if row[0] == "pages"]
    mapped[-1][7] = mapped[0][7]


def _option(forged: ExportedFile) -> None:
    options = forged.things("InternetSocket")[0]["facts"]["with"]["options"]
    value = as_bytes((1 << 30).to_bytes(4, "little"))
    options.append({"is": "SocketOption", "with": {"level": 1, "option": 32, "value": value}})  # SO_SNDBUFFORCE


def _raw(forged: ExportedFile) -> None:
    forged.things("InternetSocket")[0]["facts"]["with"]["type"] = 3


def _truncating(forged: ExportedFile) -> None:
    forged.descriptions[-1]["with"]["flags"] |= 0o1000


def _twice(forged: ExportedFile) -> None:
    forged.descriptions.append(forged.descriptions[-1])


def _many_ancestors(forged: ExportedFile) -> None:
    forged.state["lineage"] = {"set": list(range(1000, 30_000))}


def _init(forged: ExportedFile) -> None:
    forged.process["children"] = [[1, 9]]


def _everybody(forged: ExportedFile) -> None:
    forged.process["children"] = [[-1, 9]]


def _endless_pipe(forged: ExportedFile) -> None:
    forged.things("PipeEnd")[0]["capacity"] = 1 << 30


def _clock(forged: ExportedFile) -> None:
    forged.manifest["monotonic"] = 1e300


def _capability(forged: ExportedFile) -> None:
    forged.give_files([_folder("root"), {**_file("root/x"), "attributes": {b"security.capability".hex(): "00"}}])


def _device(forged: ExportedFile) -> None:
    forged.give_files([_folder("root"), {**_file("root/x"), "mode": stat.S_IFBLK | 0o666, "device": 0x800}])


def _climbing(forged: ExportedFile) -> None:
    forged.give_files([_folder("root"), _file("root/../../x")])


def _link(path: str, to: str) -> dict[str, Any]:
    return {"path": path.encode().hex(), "mode": stat.S_IFLNK | 0o777, "owner": [0, 0], "times": [0, 0]} | {
        "to": to.encode().hex()
    }


def _behind_a_link(forged: ExportedFile) -> None:
    # The engine can write to its own /tmp.
    forged.give_files([_folder("root"), _link("root/out", "/"), _file("root/out/tmp/x")])


def _folder_behind_a_link(forged: ExportedFile) -> None:
    forged.give_files([_folder("root"), _link("root/out", "/"), _folder("root/out/tmp/x")])


def _same_as_behind_a_link(forged: ExportedFile) -> None:
    same = {**_file("root/x"), "same_as": b"root/out/etc/passwd".hex()}
    forged.give_files([_folder("root"), _link("root/out", "/"), same])


def _work(forged: ExportedFile) -> None:
    forged.give_files([_folder("work")])


def _file(path: str) -> dict[str, Any]:
    plain = {"owner": [0, 0], "times": [0, 0], "size": 0, "extents": [], "attributes": {}}
    return {"path": path.encode().hex(), "mode": stat.S_IFREG | 0o644, **plain}


def _folder(path: str) -> dict[str, Any]:
    return {**_file(path), "mode": stat.S_IFDIR | 0o755}


_ATTACKS: list[tuple[Callable[[ExportedFile], None], str]] = [
    (_trees, "another version here, or installed elsewhere"),
    (_outside, "which no pod shows"),
    (_above, "which no pod shows"),
    (_scratch, "outside the memory of a process"),
    (_shared_scratch, "a shared mapping elsewhere"),
    (_shared_vdso, "the kernel's area|a shared mapping elsewhere"),
    (_same_pages, "pages of the image are out of order"),
    (_option, "option 32 of level 1"),
    (_raw, "raw socket"),
    (_truncating, "the flags"),
    (_twice, "open twice"),
    (_many_ancestors, "its ancestors"),
    (_init, "a child with the pid 1"),
    (_everybody, "a child with the pid -1"),
    (_endless_pipe, "a pipe for"),
    (_clock, "of another age"),
    (_capability, "the attribute"),
    (_device, "a device at"),
    (_climbing, "the image has a file at"),
    (_behind_a_link, "none of its folders"),
    (_folder_behind_a_link, "none of its folders"),
    (_same_as_behind_a_link, "none of its folders"),
    (_work, "files at 'work'"),
]
_FAST = (_trees, _outside, _scratch, _shared_scratch, _option, _many_ancestors, _behind_a_link)


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        pytest.param(attack, said, id=attack.__name__, marks=() if attack in _FAST else pytest.mark.deep("attacks"))
        for attack, said in _ATTACKS
    ],
)
def test_a_forged_image_is_refused_by_name(
    forged: ExportedFile, tmp_path: Path, attack: Callable[[ExportedFile], None], said: str
) -> None:
    attack(forged)
    assert_refused(forged, tmp_path, said)


@pytest.mark.parametrize(("part", "size"), [("pages", 1 << 50), ("files", 1 << 50), ("state", 1 << 40), ("pages", -1)])
def test_a_file_that_claims_to_be_enormous_is_refused_before_anything_is_written(
    forged: ExportedFile, tmp_path: Path, part: str, size: int
) -> None:
    path = forged.write(tmp_path / "x.ramet", lambda sizes: sizes.update({part: size}))
    with pytest.raises(RametError, match="bytes, allowed are"):
        Snapshot.load(path)


def test_what_an_image_asks_for_is_made_without_capabilities(forged: ExportedFile, tmp_path: Path) -> None:
    """A port that takes a capability: the sandbox has none when it binds it."""
    forged.things("InternetSocket")[0]["local"][1] = 80
    with Sandbox() as sandbox:
        may = sandbox.run_code("import socket; socket.socket().bind(('127.0.0.1', 80))").ok
    with Snapshot.load(forged.write(tmp_path / "x.ramet")) as loaded:
        if may:
            Sandbox(loaded).close()
        else:
            with pytest.raises(RametError, match="bind to 127.0.0.1 port 80: Permission denied"):
                Sandbox(loaded)


def test_a_file_of_the_image_runs_nobody_as_another_user(forged: ExportedFile, tmp_path: Path) -> None:
    names = [_folder("root"), _folder("root/root"), {**_file("root/root/x"), "mode": stat.S_IFREG | 0o6755}]
    forged.give_files([*names, _file("numbers")])
    with Snapshot.load(forged.write(tmp_path / "x.ramet")) as loaded, Sandbox(loaded) as copy:
        assert value(copy, "oct(os.stat('/root/x').st_mode)") == oct(stat.S_IFREG | 0o755)
