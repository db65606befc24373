"""Who may come in, and how much they may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ramet.errors import EngineClosed, LimitReached, Unauthorized
from ramet.protocol.listing import SandboxRow
from ramet.server.errors import Refused
from ramet.server.gate import Door, Gate
from ramet.server.keys import KeyLimits, KeyRow
from ramet.server.link import Link
from ramet.server.news import News
from ramet.server.records import Records
from ramet.server.settings import ServerSettings

MIB = 1024 * 1024


def row(number: int, owner: str = "key_a", memory_bytes: int = 100 * MIB) -> SandboxRow:
    return SandboxRow(f"sbx_{number:032x}", owner, "idle", "default", 0, None, None, None, 0, memory_bytes, False)


def key(**limits: int | None) -> KeyRow:
    return KeyRow("key_a", "a", "sandboxes", KeyLimits(**limits), 0)


@pytest.fixture
def link() -> Link:
    return Link("/nowhere")


@pytest.fixture
def gate(link: Link) -> Gate:
    return Gate(link)


def tell(link: Link, news: News) -> None:
    for callback in link.on_news:
        callback(news)


async def test_cells_are_counted_per_owner(gate: Gate) -> None:
    limited = key(concurrent_cells=2)
    with gate.cell("key_a", limited), gate.cell("key_a", limited):
        with pytest.raises(LimitReached, match="2 cells"):
            gate.begin_cell("key_a", limited)
        with gate.cell("key_b", limited):
            assert gate.busy == 3
    assert gate.busy == 0
    with gate.cell("key_a", limited):
        pass


async def test_who_has_no_key_has_no_limit_of_cells(gate: Gate) -> None:
    for _ in range(1000):
        gate.begin_cell("local", None)
    assert gate.busy == 1000


async def test_sandboxes_that_live_and_that_are_made_count(gate: Gate, link: Link) -> None:
    limited = key(sandboxes=3)
    tell(link, News("all", sandboxes=(row(1), row(2, "key_b"))))
    with gate.room("key_a", limited, 1, 0) as first:
        with pytest.raises(LimitReached, match="has 2 sandboxes, and may have 3"), gate.room("key_a", limited, 2, 0):
            pass
        first.made([row(3).id])
    # Its news is not there yet, and it counts all the same; then it counts once.
    with pytest.raises(LimitReached), gate.room("key_a", limited, 2, 0):
        pass
    tell(link, News("begun", sandboxes=(row(3),), id=row(3).id, owner="key_a"))
    with gate.room("key_a", limited, 1, 0):
        pass
    tell(link, News("ended", id=row(3).id, owner="key_a", cause="closed"))
    with gate.room("key_a", limited, 2, 0):
        pass


async def test_news_that_comes_before_the_answer_is_not_counted_twice(gate: Gate, link: Link) -> None:
    limited = key(sandboxes=2)
    with gate.room("key_a", limited, 1, 0) as room:
        tell(link, News("begun", sandboxes=(row(1),), id=row(1).id, owner="key_a"))
        room.made([row(1).id])
    with gate.room("key_a", limited, 1, 0):
        pass


async def test_a_failure_gives_the_room_back(gate: Gate) -> None:
    limited = key(sandboxes=1)
    with pytest.raises(RuntimeError), gate.room("key_a", limited, 1, 0):
        raise RuntimeError
    with gate.room("key_a", limited, 1, 0):
        pass


async def test_memory_is_the_sum_of_the_limits(gate: Gate, link: Link) -> None:
    limited = key(memory_mib=250)
    tell(link, News("all", sandboxes=(row(1),)))
    with gate.room("key_a", limited, 1, 100 * MIB):
        with pytest.raises(LimitReached, match="250 MiB"), gate.room("key_a", limited, 1, 100 * MIB):
            pass
        with gate.room("key_a", limited, 1, 50 * MIB):
            pass


async def test_children_of_a_fork_arrive_one_by_one(gate: Gate, link: Link) -> None:
    limited = key(sandboxes=4, memory_mib=400)
    tell(link, News("all"))
    children = [row(number) for number in range(3)]
    with gate.room("key_a", limited, 3, 300 * MIB) as room:
        room.made([child.id for child in children])
    for child in children:
        tell(link, News("begun", sandboxes=(child,), id=child.id, owner="key_a"))
        with gate.room("key_a", limited, 1, 100 * MIB):
            pass
        with pytest.raises(LimitReached), gate.room("key_a", limited, 2, 0):
            pass


async def test_templates_of_ones_own_are_counted_once_each(gate: Gate) -> None:
    limited = key(templates=2)
    for name in ("one", "two", "one", "two"):
        gate.template("key_a", limited, name)
    with pytest.raises(LimitReached, match="one, two|has 2 templates"):
        gate.template("key_a", limited, "three")


async def test_a_server_that_stops_begins_nothing(gate: Gate) -> None:
    gate.close()
    with pytest.raises(EngineClosed, match="the server is stopping"):
        gate.begin_cell("local", None)
    with pytest.raises(EngineClosed), gate.room("local", None, 1, 0):
        pass


# The door


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    opened = Records(tmp_path / "ramet.db")
    yield opened
    opened.close()


def identify(records: Records, headers: Mapping[bytes, bytes], *, require_key: bool = False) -> str:
    settings = ServerSettings(state="", require_key=require_key)
    return Door(settings, records).identify(headers)[0]


def test_a_key_says_who_it_is_until_it_is_revoked(records: Records) -> None:
    made, secret = records.create_key("ci")
    authorization = {b"authorization": f"Bearer {secret}".encode()}
    assert identify(records, authorization) == made.id
    assert identify(records, {b"authorization": f"bearer  {secret} ".encode()}) == made.id
    records.revoke_key("ci")
    with pytest.raises(Unauthorized, match="^invalid api key"):
        identify(records, authorization)


@pytest.mark.parametrize("value", [b"", b"Bearer", b"Bearer ", b"Basic abc", b"rmt_abc", b"Bearer \xff\xfe"])
def test_a_wrong_key_is_never_the_local_user(records: Records, value: bytes) -> None:
    with pytest.raises(Unauthorized, match="^invalid api key"):
        identify(records, {b"authorization": value, b"host": b"127.0.0.1"})


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:7070", b"127.0.0.1:80", b"[::1]:7070", b"[::1]"])
def test_programs_of_this_machine_need_no_key(records: Records, host: bytes) -> None:
    assert identify(records, {b"host": host}) == "local"
    assert identify(records, {b"host": host, b"origin": b"http://" + host}) == "local"


@pytest.mark.parametrize("host", [b"evil.example", b"evil.example:7070", b"127.0.0.1.evil.example", b"", b":80", b"::"])
def test_a_name_that_was_made_to_point_here_is_refused(records: Records, host: bytes) -> None:
    with pytest.raises(Refused) as refused:
        identify(records, {b"host": host})
    assert refused.value.status == 403


@pytest.mark.parametrize("origin", [b"http://evil.example", b"null", b"https://localhost:7070", b"http://localhost:1"])
def test_a_page_of_another_site_is_refused(records: Records, origin: bytes) -> None:
    with pytest.raises(Refused) as refused:
        identify(records, {b"host": b"localhost:7070", b"origin": origin})
    assert refused.value.status == 403


def test_without_a_host_nobody_is_local(records: Records) -> None:
    with pytest.raises(Refused):
        identify(records, {})


def test_where_a_key_is_required_nobody_is_local(records: Records) -> None:
    with pytest.raises(Unauthorized, match="^missing Authorization: Bearer <key>"):
        identify(records, {b"host": b"localhost"}, require_key=True)
