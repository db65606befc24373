"""Output cut into lines, and written as events."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ramet.doors.http.routes.cell_answers.line_events import LineCutter, LineEvents

_PIECES = st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"\r\n", b"a\xe2\x82", b"\xac\n", b"\xc2\x85"]))


@given(_PIECES)
def test_lines_joined_again_are_the_output_however_it_came(pieces: list[bytes]) -> None:
    cutter = LineCutter()
    lines = [line for piece in pieces for line in cutter.feed(piece)] + cutter.finish()
    whole = b"".join(pieces)
    expected = whole.decode("utf-8", "replace").split("\n")
    if expected[-1] == "":
        expected.pop()
    assert lines == expected
    assert all("\n" not in line for line in lines)


@given(_PIECES)
def test_each_event_is_one_line_of_ascii(pieces: list[bytes]) -> None:
    events = LineEvents()
    written = b"".join(events.output(number % 2, piece) for number, piece in enumerate(pieces)) + events.exit(3)
    assert written.isascii()
    parsed = [json.loads(line) for line in written.decode().splitlines()]
    assert [event["seq"] for event in parsed] == list(range(len(parsed)))
    assert (parsed[-1]["type"], parsed[-1]["data"]) == ("exit", 3)
    assert all(set(event) == {"type", "data", "seq", "ts"} for event in parsed)


def test_only_a_line_feed_ends_a_line() -> None:
    text = "one\r two\x0b three\x0c four\x85 five\u2028 six\u2029 seven\r"
    assert LineCutter().feed(f"{text}\n".encode()) == [text]


def test_a_line_of_some_megabytes_is_one_event() -> None:
    cutter = LineCutter()
    pieces = [b"x" * 65536] * 48
    assert [line for piece in pieces for line in cutter.feed(piece)] == []
    assert cutter.feed(b"\n") == ["x" * 65536 * 48]


def test_a_line_without_an_end_is_given_in_parts_and_no_character_is_broken() -> None:
    cutter = LineCutter(line_bytes_at_most=10)
    parts = [line for _ in range(8) for line in cutter.feed("aé€".encode())] + cutter.finish()
    assert "".join(parts) == "aé€" * 8
    assert len(parts) > 2


def test_the_streams_do_not_mix() -> None:
    events = LineEvents()
    written = events.output(0, b"out") + events.output(1, b"err\n") + events.output(0, b"put\n") + events.exit(0)
    told = [(event["type"], event["data"]) for event in map(json.loads, written.splitlines())]
    assert told == [("stderr", "err"), ("stdout", "output"), ("exit", 0)]
