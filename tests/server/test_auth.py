"""Who may come in, and how much they may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ramet.doors.http.access.auth import ActivityLimits, Authenticator
from ramet.doors.http.access.keys import KeyLimits
from ramet.doors.http.records import ServerRecords
from ramet.doors.http.requests.errors import RequestRefused
from ramet.doors.http.settings import ServerSettings
from ramet.errors import EngineClosed, LimitReached, Unauthorized


@pytest.fixture
def activity() -> ActivityLimits:
    return ActivityLimits(
        ServerSettings(state="", requests=5, requests_of_an_owner=3, held_bytes=150, held_bytes_of_an_owner=100)
    )


async def test_cells_are_counted_per_owner(activity: ActivityLimits) -> None:
    limited = KeyLimits(concurrent_cells=2)
    with activity.cell("key_a", limited), activity.cell("key_a", limited):
        with pytest.raises(LimitReached, match="2 cells"):
            activity.begin_cell("key_a", limited)
        with activity.cell("key_b", limited):
            assert activity.busy == 3
    assert activity.busy == 0
    with activity.cell("key_a", limited):
        pass


async def test_requests_are_counted_per_owner_and_together(activity: ActivityLimits) -> None:
    for _ in range(3):
        activity.enter("key_a")
    with pytest.raises(LimitReached, match="3 requests"):
        activity.enter("key_a")
    activity.enter("key_b")
    activity.enter("key_b")
    with pytest.raises(RequestRefused) as refused:
        activity.enter("key_c")
    assert refused.value.status == 503
    activity.leave("key_a", 0)
    activity.enter("key_c")


async def test_what_requests_hold_is_counted_until_they_are_over(activity: ActivityLimits) -> None:
    for owner in ("key_a", "key_a", "key_b", "key_c"):
        activity.enter(owner)
    activity.hold("key_a", 60)
    with pytest.raises(LimitReached, match="long requests"):
        activity.hold("key_a", 60)  # counts all the same: the request that has it is given up
    activity.leave("key_a", 60)
    activity.hold("key_b", 60)
    with pytest.raises(LimitReached):
        activity.hold("key_c", 60)  # of all together
    activity.leave("key_c", 60)
    activity.leave("key_a", 60)
    activity.hold("key_b", 40)


async def test_a_server_that_stops_begins_nothing(activity: ActivityLimits) -> None:
    activity.close()
    with pytest.raises(EngineClosed, match="the server is stopping"):
        activity.begin_cell("local", KeyLimits())
    with pytest.raises(EngineClosed):
        activity.check_open()


# Authentication


@pytest.fixture
def records(tmp_path: Path) -> Iterator[ServerRecords]:
    opened = ServerRecords(tmp_path / "ramet.db")
    yield opened
    opened.close()


def identify(records: ServerRecords, headers: Mapping[bytes, bytes], *, require_key: bool = False) -> str:
    settings = ServerSettings(state="", require_key=require_key)
    return Authenticator(settings, records).identify(headers)[0]


def test_a_key_says_who_it_is_until_it_is_revoked(records: ServerRecords) -> None:
    made, secret = records.keys.create("ci")
    authorization = {b"authorization": f"Bearer {secret}".encode()}
    assert identify(records, authorization) == made.id
    assert identify(records, {b"authorization": f"bearer  {secret} ".encode()}) == made.id
    records.keys.revoke("ci")
    with pytest.raises(Unauthorized, match="^invalid api key"):
        identify(records, authorization)


@pytest.mark.parametrize("value", [b"", b"Bearer", b"Bearer ", b"Basic abc", b"rmt_abc", b"Bearer \xff\xfe"])
def test_a_wrong_key_is_never_the_local_user(records: ServerRecords, value: bytes) -> None:
    records.keys.create("ci")
    with pytest.raises(Unauthorized, match="^invalid api key"):
        identify(records, {b"authorization": value, b"host": b"127.0.0.1"})


@pytest.mark.parametrize("value", [b"", b"Bearer pf_live_1", b"Basic abc", b"Bearer \xff\xfe"])
def test_where_no_key_was_ever_made_any_key_will_do(records: ServerRecords, value: bytes) -> None:
    """Programs send the key that they have for another server. It opens nothing that no key would not open."""
    here = {b"authorization": value, b"host": b"127.0.0.1:7070"}
    assert identify(records, here) == "local"
    with pytest.raises(Unauthorized, match="^invalid api key"):
        identify(records, here, require_key=True)
    for foreign in ({b"host": b"evil.example"}, {b"origin": b"http://evil.example"}):
        with pytest.raises(RequestRefused):
            identify(records, {**here, **foreign})
    records.keys.create("prometheus", scope="metrics")
    assert identify(records, here) == "local"


def test_a_key_that_was_the_last_one_and_is_revoked_is_not_any_key(records: ServerRecords) -> None:
    _, secret = records.keys.create("ci")
    records.keys.revoke("ci")
    with pytest.raises(Unauthorized, match="^invalid api key"):
        identify(records, {b"authorization": f"Bearer {secret}".encode(), b"host": b"127.0.0.1"})


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:7070", b"127.0.0.1:80", b"[::1]:7070", b"[::1]"])
def test_programs_of_this_machine_need_no_key(records: ServerRecords, host: bytes) -> None:
    assert identify(records, {b"host": host}) == "local"
    assert identify(records, {b"host": host, b"origin": b"http://" + host}) == "local"


@pytest.mark.parametrize("host", [b"evil.example", b"evil.example:7070", b"127.0.0.1.evil.example", b"", b":80", b"::"])
def test_a_name_that_was_made_to_point_here_is_refused(records: ServerRecords, host: bytes) -> None:
    with pytest.raises(RequestRefused) as refused:
        identify(records, {b"host": host})
    assert refused.value.status == 403


@pytest.mark.parametrize("origin", [b"http://evil.example", b"null", b"https://localhost:7070", b"http://localhost:1"])
def test_a_page_of_another_site_is_refused(records: ServerRecords, origin: bytes) -> None:
    with pytest.raises(RequestRefused) as refused:
        identify(records, {b"host": b"localhost:7070", b"origin": origin})
    assert refused.value.status == 403


@pytest.mark.parametrize("site", [b"cross-site", b"same-site"])
def test_a_picture_or_script_that_another_page_asks_for_is_refused(records: ServerRecords, site: bytes) -> None:
    """Requests without an Origin, which a page makes with a tag."""
    with pytest.raises(RequestRefused) as refused:
        identify(records, {b"host": b"localhost:7070", b"sec-fetch-site": site})
    assert refused.value.status == 403
    for own in (b"same-origin", b"none"):
        assert identify(records, {b"host": b"localhost:7070", b"sec-fetch-site": own}) == "local"


def test_without_a_host_nobody_is_local(records: ServerRecords) -> None:
    with pytest.raises(RequestRefused):
        identify(records, {})


def test_where_a_key_is_required_nobody_is_local(records: ServerRecords) -> None:
    with pytest.raises(Unauthorized, match="^missing Authorization: Bearer <key>"):
        identify(records, {b"host": b"localhost"}, require_key=True)
