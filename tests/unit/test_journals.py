"""Journals: what they say survives a full disk, and they stay small."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ramet.errors import RametError
from ramet.isolation.files.journals import JournalLines, Journals

_CODE = "x = 1  # a cell of usual length, as it is written down"


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[Journals]:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    made = Journals(folder)
    yield made
    made.close()
    os.close(folder)


def looked(journals: Journals) -> JournalLines:
    found = journals.look("name")
    assert found is not None
    return found[0]


def test_what_an_image_has_goes_from_a_long_journal_and_the_rest_stays(journals: Journals) -> None:
    journal = journals.open("name")
    journal.introduce({"id": "sbx_1"})
    for number in range(2000):
        journal.begun(number, b"x = 1" * 40)
        journal.changed(number, "the return to a point")
    journal.written(1998, 1997)
    found = journal.contents()
    journal.close()
    assert found == looked(journals)
    assert (dict(found.about), [cell for cell, _ in found.cells]) == ({"id": "sbx_1"}, [1999])
    assert found.changes == ((1998, "the return to a point"), (1999, "the return to a point"))


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_does_not_make_a_journal_forget_its_sandbox(journals: Journals, tmp_path: Path) -> None:
    journal = journals.open("one")
    journal.introduce({"id": "sbx_1"})
    with no_file_grows_beyond((tmp_path / "sandboxes" / "one").stat().st_size):
        journal.introduce({"id": "sbx_1", "expires_ms": 5})
        journal.begun(1, b"x")
    assert journal.contents().about == {"id": "sbx_1"}
    journal.introduce({"id": "sbx_1", "expires_ms": 7})
    journal.begun(2, b"y")
    journal.close()
    looked = journals.look("one")
    assert looked is not None
    assert (looked[0].about["expires_ms"], looked[0].cells, looked[1]) == (7, ((2, "y"),), False)


def test_a_journal_stays_small_without_any_image(journals: Journals, tmp_path: Path) -> None:
    journal = journals.open("one")
    journal.introduce({"id": "sbx_1"})
    for number in range(1, 30_001):
        journal.begun(number, _CODE.encode())
    assert (tmp_path / "sandboxes" / "one").stat().st_size < 2 << 20
    found = journal.contents()
    assert found.about == {"id": "sbx_1"}
    assert [number for number, _ in found.cells] == list(range(29_001, 30_001))
    journal.close()
    assert os.listdir(tmp_path / "sandboxes") == ["one"]


def test_one_engine_has_a_journal_also_after_it_was_written_anew(journals: Journals, tmp_path: Path) -> None:
    journal = journals.open("one")
    journal.introduce({"id": "sbx_1"})
    before = (tmp_path / "sandboxes" / "one").stat().st_ino
    number = 0
    while (tmp_path / "sandboxes" / "one").stat().st_ino == before and number < 10_000:
        number += 1
        journal.begun(number, _CODE.encode())
        journal.written(number - 1, 0)
    assert journal.contents().cells == ((number, _CODE),)
    with pytest.raises(RametError, match="alive in another engine"):
        journals.open("one")
    journal.close(remove=True)
    journals.open("one").close()
    assert os.listdir(tmp_path / "sandboxes") == []  # one that says nothing does not stay


_LOOKING = """
import os, sys
from ramet.isolation.files.journals import JournalLines, Journals
journals = Journals(os.open(sys.argv[1], os.O_RDONLY))
print("looking", flush=True)
while True:
    journals.look("one")
"""


def test_who_looks_at_a_journal_does_not_keep_an_engine_from_it(journals: Journals, tmp_path: Path) -> None:
    journal = journals.open("one")
    journal.introduce({"id": "sbx_1"})
    journal.close()
    command = [sys.executable, "-c", _LOOKING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as looking:
        try:
            assert looking.stdout is not None
            assert looking.stdout.readline() == b"looking\n"
            for _ in range(20_000):
                journals.open("one").close()
        finally:
            looking.kill()


_NO_ROOM = """
import os, resource, signal, sys
from ramet.isolation.files.journals import Journals
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journals = Journals(os.open(sys.argv[1], os.O_RDONLY))
journal = journals.open("name")
journal.introduce({"id": "sbx_1", "state": "hibernated"})
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
journal.introduce({"id": "sbx_1", "state": "idle"})
journal.begun(1, b"x = 1")
"""


@pytest.mark.parametrize("room", [0, 20])
def test_a_journal_for_which_there_is_no_room_stays_as_it_was(journals: Journals, tmp_path: Path, room: int) -> None:
    """A sandbox whose journal is empty would not be found by the next engine of its server."""
    done = subprocess.run([sys.executable, "-c", _NO_ROOM, str(tmp_path), str(room)], check=False)
    assert done.returncode == 0
    assert looked(journals) == JournalLines({"id": "sbx_1", "state": "hibernated"}, (), (), False)
    assert os.listdir(tmp_path / "sandboxes") == ["name"]
