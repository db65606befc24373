"""Ranges as RFC 9110 has them, and queries that hold any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.doors.http.requests.queries import QueryFields
from ramet.doors.http.requests.ranges import Part, Unsatisfiable, asked_part
from ramet.errors import InvalidArgument


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_a_range_is_what_a_slice_of_the_bytes_is(size: int, first: int, last: int) -> None:
    data = bytes(range(size))
    if last < first:
        assert asked_part(f"bytes={first}-{last}", size) is None
    elif first >= size:
        with pytest.raises(Unsatisfiable):
            asked_part(f"bytes={first}-{last}", size)
    else:
        part = asked_part(f"bytes={first}-{last}", size)
        assert part is not None
        assert data[part.offset : part.offset + part.length] == data[first : last + 1]


@given(st.integers(1, 50), st.integers(1, 60))
def test_a_suffix_is_the_end_of_the_bytes(size: int, length: int) -> None:
    assert asked_part(f"bytes=-{length}", size) == Part(max(size - length, 0), min(length, size))


@given(st.text(max_size=40))
def test_any_header_is_a_part_the_whole_or_unsatisfiable(header: str) -> None:
    try:
        part = asked_part(header, 10)
    except Unsatisfiable:
        return
    assert part is None or (0 <= part.offset < 10 and 0 < part.length <= 10 - part.offset)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_query_or_refused(raw: bytes) -> None:
    query = QueryFields(raw)
    try:
        path = query.optional_text("path")
        query.done()
    except InvalidArgument:
        return
    assert path is None or isinstance(path, str)


@given(st.binary(max_size=60))
def test_a_value_may_be_any_bytes(value: bytes) -> None:
    raw = b"path=" + b"".join(b"%%%02x" % byte for byte in value)
    assert QueryFields(raw).text("path").encode("utf-8", "surrogateescape") == value


@pytest.mark.parametrize("value", ["", "-1", "1.5", "1e3", "\u0663", "9" * 19, "0x10"])
def test_a_number_in_a_query_is_plain_digits(value: str) -> None:
    with pytest.raises(InvalidArgument, match="since"):
        QueryFields(f"since={value}".encode()).optional_whole("since")
