"""Events of an upstream, whatever pieces they come in; answers, whoever reads them; threads, as long as they last."""

from __future__ import annotations

import asyncio

import pytest

from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.turns.recordings import Recording
from ramet.doors.gateway.turns.threads import Thread, Threads
from ramet.doors.gateway.upstream.sse import EventReader, EventTooLong, ServerEvent, encode
from ramet.doors.gateway.upstream.usage import UsageSum
from tests.waiting import settle

STREAM = (
    b"\xef\xbb\xbfevent: one\ndata: {\ndata: }\n\n"
    b": a comment\r\nevent: two\r\ndata:x\r\nid: 5\r\n\r\n"
    b"data: three\r\revent: nothing\n\nevent: four\ndata: \xc3\xa4"
)
EVENTS = [ServerEvent("one", "{\n}"), ServerEvent("two", "x"), ServerEvent("", "three"), ServerEvent("four", "ä")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_read_from_pieces_of_any_size(size: int) -> None:
    reader, found = EventReader(), []
    for at in range(0, len(STREAM), size):
        found += reader.feed(STREAM[at : at + size])
    assert found + reader.end() == EVENTS


def test_a_line_without_an_end_is_given_up() -> None:
    reader = EventReader()
    reader.feed(b"x" * (32 << 20))
    with pytest.raises(EventTooLong):
        reader.feed(b"x")


def test_an_event_is_written_as_it_is_read() -> None:
    event = {"type": "ping", "text": "ä\n\ud800"}
    assert EventReader().feed(encode(event)) == [ServerEvent("ping", '{"type":"ping","text":"ä\\n?"}')]


async def test_a_recording_is_read_from_its_beginning_by_everybody() -> None:
    recording = Recording([{"type": "a"}])

    async def read() -> list[str]:
        seen = 0
        while True:
            await recording.beyond(seen)
            if len(recording.events) == seen:
                return [event["type"] for event in recording.events]
            seen = len(recording.events)

    readers = [asyncio.create_task(read()) for _ in range(3)]
    await settle()  # every reader waits for more
    recording.add({"type": "b"})
    await settle()  # every reader waits for more
    recording.end(ApiError(500, "x"))
    recording.end()
    assert await asyncio.gather(*readers, read()) == [["a", "b"]] * 4
    assert recording.error is not None


def test_usage_is_summed_over_samples_and_replaced_within_one() -> None:
    usage = UsageSum()
    usage.update({"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": None, "service_tier": "standard"})
    usage.update({"output_tokens": 7, "cache_creation": {"ephemeral_5m_input_tokens": 3}})
    assert usage.end_sample()["output_tokens"] == 7
    usage.update({"input_tokens": 5, "output_tokens": 2, "cache_creation": {"ephemeral_5m_input_tokens": 1}})
    usage.update("nonsense")
    assert usage.total(with_searches=True) == {
        "input_tokens": 15,
        "output_tokens": 9,
        "service_tier": "standard",
        "cache_creation": {"ephemeral_5m_input_tokens": 4},
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
    }
    usage.drop_sample()
    assert usage.total_for_delta(with_searches=False) == {"input_tokens": 10, "output_tokens": 7}


def test_a_thread_lasts_its_time_and_is_its_owners() -> None:
    now = [0.0]
    threads = Threads(300, lambda: now[0])
    threads.keep("alice", "msg_1", Thread(({"role": "user", "content": "x"},)))
    now[0] = 299
    assert threads.find("alice", "msg_1").messages[0]["content"] == "x"
    for owner, message_id in (("bob", "msg_1"), ("alice", "msg_2")):
        with pytest.raises(ApiError) as caught:
            threads.find(owner, message_id)
        assert (caught.value.status, caught.value.error_code) == (404, "thread_not_found")
    now[0] = 300
    with pytest.raises(ApiError):
        threads.find("alice", "msg_1")
    threads.keep("alice", "msg_3", Thread())
    assert len(threads) == 1


def test_threads_take_up_a_bounded_room() -> None:
    threads = Threads(300, lambda: 0.0)
    for number in range(40):
        threads.keep("alice", f"msg_{number}", Thread(size_bytes=32 << 20))
    assert len(threads) == 16


def test_threads_of_an_upstream_that_repeats_its_ids_take_up_the_room_of_one() -> None:
    threads = Threads(300, lambda: 0.0)
    for _ in range(40):
        threads.keep("alice", "msg_same", Thread(size_bytes=32 << 20))
    threads.keep("alice", "msg_other", Thread())
    assert len(threads) == 2


def test_a_thread_counts_its_answers_too() -> None:
    thread = Thread(size_bytes=10).with_answer([{"type": "text", "text": "x" * 1000}], None)
    assert thread.size_bytes > 1010


def test_a_long_line_is_read_from_many_pieces() -> None:
    reader, found = EventReader(), []
    for piece in [
        b"data: ",
        *[b"x" * 50_000] * 10,
        b"\r",
        b"\n",
        b"\r",
        b"data: y",
        b"\r\r",
        b"data: z" + b"z" * 70_000,
    ]:
        found += reader.feed(piece)
    assert [len(event.data) for event in found + reader.end()] == [500_000, 1, 70_001]
