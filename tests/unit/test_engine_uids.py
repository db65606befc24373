"""Host uids of engines: each has its own, for as long as something holds its lock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet.errors import LimitReached
from ramet.isolation.own_processes import engine_uids
from ramet.isolation.own_processes.engine_uids import FIRST_UID, UIDS, EngineUid, _choices, take

Take = Callable[[range], EngineUid]


@pytest.fixture
def take_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Take]:
    """Of a lock file of the test's own; what is taken is let go of."""
    lock = tmp_path / "lock"

    def open_lock() -> int:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    monkeypatch.setattr(engine_uids, "_open_lock", open_lock)
    taken: list[EngineUid] = []

    def one(among: range) -> EngineUid:
        taken.append(take(among))
        return taken[-1]

    yield one
    for each in taken:
        if each.lock is not None:
            try:
                os.close(each.lock)
            except OSError:
                continue  # the test has


def test_no_two_engines_have_the_same_uid(take_one: Take) -> None:
    few = range(FIRST_UID, FIRST_UID + 8)
    assert sorted(take_one(few).uid for _ in few) == list(few)
    with pytest.raises(LimitReached, match=f"{FIRST_UID} to {FIRST_UID + 7}"):
        take_one(few)


def test_a_uid_is_free_again_when_its_holder_has_ended_and_not_before(take_one: Take) -> None:
    single = range(FIRST_UID, FIRST_UID + 1)
    first = take_one(single)
    assert first.lock is not None
    # Inherited by another process, as the launcher does; our own copy is closed.
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[first.lock]
    ) as holder:
        first.close()
        with pytest.raises(LimitReached):
            take_one(single)
        holder.kill()  # without a chance to clean up
        holder.wait(30)
    assert take_one(single).uid == FIRST_UID


def test_a_lock_that_cannot_be_had_costs_the_promise_and_not_the_engine(
    take_one: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_uids, "_open_lock", lambda: None)
    assert take_one(range(FIRST_UID, FIRST_UID + UIDS)).lock is None


@pytest.mark.parametrize(
    ("mapped", "chosen"),
    [
        ([(0, 2**32 - 1)], range(FIRST_UID, FIRST_UID + UIDS)),
        ([(0, 65536)], range(65280, 65536)),
        ([(0, 1), (1, 65536)], range(65281, 65537)),
        ([(0, 1)], None),
        ([(0, 2)], range(1, 2)),
    ],
)
def test_uids_are_chosen_from_those_that_exist(mapped: list[tuple[int, int]], chosen: range | None) -> None:
    assert _choices(mapped) == chosen


def test_nobody_is_no_engine(take_one: Take) -> None:
    taken = {take_one(range(65530, 65536)).uid for _ in range(4)}
    assert taken == {65530, 65531, 65532, 65533}
