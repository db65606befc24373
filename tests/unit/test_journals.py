"""Journals of sandboxes on disk: what they say after a crash at any moment, and on a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.errors import RametError
from ramet.isolation.files.journals import JournalLines, Journals


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[Journals]:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    made = Journals(folder)
    os.close(folder)
    yield made
    made.close()


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


def test_one_that_begins_anew_is_locked_all_the_time(journals: Journals) -> None:
    journal = journals.open("name")
    journal.introduce({"id": "sbx_1"})
    with pytest.raises(RametError, match="alive in another engine"):
        journals.open("name")
    journal.close()
    journals.open("name").close()
    assert journals.names() == ["name"]


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
