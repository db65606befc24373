"""A request with an idempotency key is carried out once, however often and however close together it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.doors.http.records import ServerRecords, StoredAnswer
from ramet.doors.http.requests.errors import status_of
from ramet.doors.http.requests.idempotency import once
from ramet.errors import InvalidArgument, LimitReached
from tests.waiting import settle


@pytest.fixture
def records(tmp_path: Path) -> Iterator[ServerRecords]:
    opened = ServerRecords(tmp_path / "ramet.db")
    yield opened
    assert not opened.in_flight
    opened.close()


class Work:
    """Makes a new id each time it is carried out; ``gate`` holds it up."""

    def __init__(self, status: int = 201) -> None:
        self.count = 0
        self.status = status
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> StoredAnswer:
        self.count += 1
        number = self.count
        self.began.set()
        await self.gate.wait()
        return StoredAnswer(self.status, "application/json", b'{"id":%d}' % number)


async def test_the_same_request_gets_the_same_answer(records: ServerRecords) -> None:
    work = Work()
    answers = [await once(records, "key_a", "k", b"request", work) for _ in range(3)]
    assert work.count == 1
    assert set(answers) == {StoredAnswer(201, "application/json", b'{"id":1}')}


async def test_without_a_key_each_is_carried_out(records: ServerRecords) -> None:
    work = Work()
    await once(records, "key_a", None, b"request", work)
    await once(records, "key_a", None, b"request", work)
    assert work.count == 2


async def test_keys_of_two_owners_are_two_keys(records: ServerRecords) -> None:
    work = Work()
    await once(records, "key_a", "k", b"request", work)
    await once(records, "key_b", "k", b"request", work)
    assert work.count == 2


async def test_another_request_with_the_same_key_is_a_conflict(records: ServerRecords) -> None:
    work = Work()
    await once(records, "key_a", "k", b"request", work)
    with pytest.raises(InvalidArgument, match="different request") as caught:
        await once(records, "key_a", "k", b"another", work)
    assert status_of(caught.value) == 409
    assert work.count == 1


async def test_duplicates_wait_for_the_first(records: ServerRecords) -> None:
    work = Work()
    work.gate.clear()
    tasks = [asyncio.create_task(once(records, "key_a", "k", b"request", work)) for _ in range(5)]
    await work.began.wait()
    with pytest.raises(InvalidArgument):
        await once(records, "key_a", "k", b"another", work)
    work.gate.set()
    assert len(set(await asyncio.gather(*tasks))) == 1
    assert work.count == 1


async def test_a_duplicate_that_gives_up_disturbs_nobody(records: ServerRecords) -> None:
    work = Work()
    work.gate.clear()
    first = asyncio.create_task(once(records, "key_a", "k", b"request", work))
    await work.began.wait()
    second, third = (asyncio.create_task(once(records, "key_a", "k", b"request", work)) for _ in range(2))
    await settle()  # they wait for the first
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    work.gate.set()
    assert await first == await third


async def test_an_error_is_not_kept(records: ServerRecords) -> None:
    failed = Work(status=429)
    assert (await once(records, "key_a", "k", b"request", failed)).status == 429

    async def raises() -> StoredAnswer:
        raise LimitReached("full")

    with pytest.raises(LimitReached):
        await once(records, "key_a", "k", b"request", raises)
    work = Work()
    assert (await once(records, "key_a", "k", b"request", work)).status == 201


async def test_when_the_first_gives_up_the_next_one_tries(records: ServerRecords) -> None:
    work = Work()
    work.gate.clear()
    first = asyncio.create_task(once(records, "key_a", "k", b"request", work))
    await work.began.wait()
    second = asyncio.create_task(once(records, "key_a", "k", b"request", work))
    await settle()  # they wait for the first
    first.cancel()
    work.gate.set()
    assert (await second).body == b'{"id":2}'


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "a\tb", "é", "\x7f"])
async def test_a_key_is_short_visible_ascii(records: ServerRecords, key: str) -> None:
    work = Work()
    with pytest.raises(InvalidArgument, match="Idempotency-Key"):
        await once(records, "key_a", key, b"request", work)
    assert work.count == 0


async def test_the_request_itself_is_not_stored(records: ServerRecords, tmp_path: Path) -> None:
    await once(records, "key_a", "k", b"a secret of the request", Work())
    for file in tmp_path.iterdir():
        assert b"a secret" not in file.read_bytes()
