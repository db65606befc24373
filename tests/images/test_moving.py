"""Snapshots as files: what is exported can be loaded, by any program, and nothing else can."""

from __future__ import annotations

import os
import stat
import textwrap
from pathlib import Path

import pytest

from ramet import AsyncSandbox, AsyncSnapshot, RametError, Sandbox, SandboxClosed, Snapshot
from tests.fork.relatives import run, value
from tests.images.states import LOOK, SEEN, STATE
from tests.images.stores import ImageFolder


@pytest.mark.promise("image-moves-as-a-file")
def test_another_program_has_all_that_was_exported(store: ImageFolder, tmp_path: Path) -> None:
    path = str(tmp_path / "loaded.ramet")
    store.program(
        """
        import sys
        from ramet import Sandbox
        with Sandbox() as sandbox:
            assert sandbox.run_code(sys.argv[2]).ok
            with sandbox.snapshot() as snapshot:
                assert snapshot.export(sys.argv[1]) > 1 << 20
        """,
        path,
        STATE,
    )
    program = """
    import sys
    from ramet import Sandbox, Snapshot
    with Snapshot.load(sys.argv[1]) as snapshot:
        for _ in range(2):
            with Sandbox(snapshot) as sandbox:
                print([sandbox.run_code(cell).text for cell in sys.argv[2:]])
        with Sandbox(snapshot) as sandbox, sandbox.fork() as (child,):
            print(child.run_code("sum(numbers)").text)
        snapshot.save("again")
    """
    said = store.program(program, path, *LOOK).splitlines()
    assert said == [str(SEEN), str(SEEN), "499500"]
    assert store.run("sum(numbers)", template="again")["results"] == ["499500"]
    # Neither way leaves anything in the store but what was saved.
    assert not [name for name in store.names() if name.startswith("passing-")]


def test_the_file_is_its_owners_and_appears_when_it_is_complete(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "mine.ramet"
    path.write_bytes(b"before")
    with sandbox.snapshot() as snapshot:
        assert snapshot.export(path) == path.stat().st_size
        with pytest.raises(OSError, match="No such file"):
            snapshot.export(tmp_path / "nowhere" / "mine.ramet")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(SandboxClosed):
        snapshot.export(path)
    assert os.listdir(tmp_path) == ["mine.ramet"]


def test_a_sandbox_with_thousands_of_mappings_moves(store: ImageFolder, tmp_path: Path) -> None:
    """What is told of them is more than fits into a pipe at once."""
    cell = """
    import mmap
    plain = mmap.PROT_READ | mmap.PROT_WRITE
    kinds = [plain, plain | mmap.PROT_EXEC]  # two of one kind would become one mapping
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    many = [mmap.mmap(-1, 4096, flags=private, prot=kinds[number % 2]) for number in range(2500)]
    for number, each in enumerate(many):
        each[:4] = number.to_bytes(4)
    """
    program = """
    import sys
    from ramet import Sandbox, Snapshot
    path, cell, look = sys.argv[1:]
    with Sandbox(history=False) as sandbox:
        assert sandbox.run_code(cell).ok
        with sandbox.snapshot() as snapshot:
            snapshot.export(path)
    with Snapshot.load(path) as loaded, Sandbox(loaded) as copy:
        print(copy.run_code(look).value)
    """
    look = "sum(int.from_bytes(each[:4]) for each in many)"
    said = store.program(program, str(tmp_path / "x.ramet"), textwrap.dedent(cell), look)
    assert int(said) == sum(range(2500))


@pytest.mark.deep("restarts")
async def test_programs_on_an_event_loop_export_and_load(tmp_path: Path) -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 41")
        async with await sandbox.snapshot() as snapshot:
            await snapshot.export(tmp_path / "x.ramet")
    async with await AsyncSnapshot.load(tmp_path / "x.ramet") as loaded, AsyncSandbox(loaded) as copy:
        assert (await copy.run_code("x + 1")).value == "42"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("exported") / "x.ramet"
    with Sandbox() as sandbox:
        run(sandbox, "x = 1")
        with sandbox.snapshot() as snapshot:
            snapshot.export(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[: len(data) // 2], "cut short"),
        (lambda data: data[:-10], "cut short"),
        (lambda data: data + b"x", "something follows the end"),
        (
            lambda data: data[: 1 << 20] + bytes([data[1 << 20] ^ 1]) + data[(1 << 20) + 1 :],
            "not what was written|no image has|cannot be unpacked|another length than it says",
        ),
        (lambda _: b"PK\3\4" + bytes(100), "not an image of Ramet"),
        (lambda data: data.replace(b"ramet image 1", b"ramet image 9", 1), "of another version"),
        (lambda _: b"", "cut short"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_refused_by_name(
    exported: bytes, tmp_path: Path, change: object, said: str
) -> None:
    (tmp_path / "x.ramet").write_bytes(change(exported))  # type: ignore[operator]
    with pytest.raises(RametError, match=said):
        Snapshot.load(tmp_path / "x.ramet")


def test_what_a_file_may_bring_along_is_said_by_who_loads_it(exported: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.ramet").write_bytes(exported)
    with Snapshot.load(tmp_path / "x.ramet", memory_mib=300, disk_mib=100) as loaded, Sandbox(loaded) as copy:
        assert copy.info().limits.memory_bytes == 300 << 20
        assert copy.info().limits.disk_bytes == 100 << 20
        assert value(copy, "x") == 1
