"""What tools return, written here and read by the guest's own reader."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from enum import Enum, IntEnum, StrEnum
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

import numpy
import pandas
import polars
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.protocol.tools import values
from ramet.protocol.tools.values import CannotCross, encode_value
from ramet_guest.tools.returned_values import decode

pyarrow: Any = import_module("pyarrow")  # has no types

EVERYTHING = ("arrow", "npy")


def crossed(value: object, accepts: tuple[str, ...] = EVERYTHING) -> Any:
    return decode(encode_value(value, accepts).whole())


def refusal(value: object, accepts: tuple[str, ...] = EVERYTHING) -> str:
    with pytest.raises(CannotCross) as caught:
        encode_value(value, accepts)
    return str(caught.value).removeprefix("the tool returned something that cannot cross: ")


TEXT = st.text(st.characters(exclude_categories=()))  # half surrogates too
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.binary()
KEYS = TEXT | st.sampled_from(["$ramet", "items", "value"])
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=30)


@given(VALUES)
def test_plain_values_and_bytes_arrive_as_they_are(value: object) -> None:
    assert crossed(value) == value


@given(st.binary(max_size=300), st.lists(st.binary(max_size=50)), st.integers(1, 64))
def test_pieces_are_the_whole_cut_in_pieces_of_one_size(first: bytes, others: list[bytes], size: int) -> None:
    encoded = encode_value([first, *others])
    pieces = list(encoded.pieces(size))
    assert b"".join(pieces) == encoded.whole()
    assert all(len(piece) == size for piece in pieces[:-1])
    assert 0 < len(pieces[-1]) <= size


def test_long_bytes_are_not_copied_to_be_encoded() -> None:
    data = bytes(1_000_000)
    assert any(buffer is data for buffer in encode_value({"file": data}).buffers)


def test_what_may_change_on_its_way_is_copied() -> None:
    data = bytearray(b"before")
    encoded = encode_value(data)
    data[:] = b"after!"
    data.extend(b"and longer")
    assert decode(encoded.whole()) == b"before"
    assert crossed(memoryview(b"view")[1:]) == b"iew"


class Color(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Word(StrEnum):
    YES = "yes"


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Sale:
    sku: str
    when: date
    units: list[Number]


class Model(pydantic.BaseModel):
    sku: str
    when: datetime


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Pair(1, "a"), [1, "a"]),
        (Color.RED, "red"),
        ([Number.ONE, Word.YES], [1, "yes"]),
        ({Word.YES: 1}, {"yes": 1}),
        (datetime(2024, 2, 29, 12, tzinfo=UTC), "2024-02-29T12:00:00+00:00"),
        (date(2024, 2, 29), "2024-02-29"),
        (time(1, 2), "01:02:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/a/b"), "/a/b"),
        (Sale("A", date(2024, 1, 1), [Number.ONE]), {"sku": "A", "when": "2024-01-01", "units": [1]}),
        (Model(sku="A", when=datetime(2024, 1, 1)), {"sku": "A", "when": "2024-01-01T00:00:00"}),
        ([numpy.int64(3), numpy.float32(0.5), numpy.bool_(True), numpy.str_("s")], [3, 0.5, True, "s"]),
        (numpy.datetime64("2024-01-01T00:00:00.000000001"), "2024-01-01T00:00:00.000000001"),
        (frozenset({7}), [7]),
        ({"$ramet": {"$ramet": 0}}, {"$ramet": {"$ramet": 0}}),
        (2**80, 2**80),
    ],
)
def test_what_has_a_counterpart_becomes_it(value: object, expected: object) -> None:
    assert crossed(value) == expected


def test_numbers_that_json_does_not_have() -> None:
    nan, infinite = crossed([math.nan, -math.inf])
    assert math.isnan(nan)
    assert infinite == -math.inf


def itself() -> object:
    inner: list[object] = []
    inner.append({"again": inner})
    return inner


def nested(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"rows": [0, 1, 2, object()]}, "result['rows'][3] is an object"),
        (object(), "result is an object"),
        ([{"a": {"b": (1, print)}}], "result[0]['a']['b'][1] is a builtin_function_or_method"),
        ({"a": {1: 2}}, "result['a'] has the key 1, which is an int and not a str"),
        (Sale("A", 1j, []), "result['when'] is a complex"),  # type: ignore[arg-type]
        (itself(), "result[0]['again'] contains itself"),
        (1j, "result is a complex"),
        (pandas.Series([1]), "result is a Series"),
        (int, "result is a type"),
        (iter([1]), "result is a list_iterator"),
    ],
)
def test_what_cannot_cross_is_refused_with_its_place(value: object, expected: str) -> None:
    assert refusal(value) == expected


def test_a_socket_is_told_by_its_name() -> None:
    with socket.socket() as one:
        assert refusal({"rows": [one]}) == "result['rows'][0] is a socket"


def test_too_deep_and_too_many_digits_are_refused() -> None:
    assert crossed(nested(100)) == nested(100)
    assert refusal(nested(100_000)).endswith("is nested too deeply")
    assert "4300 digits" in refusal({"n": 10**5000})


def test_too_many_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "VALUE_BYTES_AT_MOST", 1000)
    assert refusal(bytes(1000)).endswith("but at most 1000 are allowed")
    encode_value(bytes(900))


DAYS = [pandas.Timestamp("2024-01-01"), pandas.NaT]
FRAME = pandas.DataFrame({"units": [1, 2], "name": ["a", None], "day": DAYS})


def test_a_table_of_pandas_stays_one_with_its_types_where_both_sides_have_arrow() -> None:
    table = FRAME.set_index("name")
    encoded = encode_value({"table": table}, ("arrow",))
    assert b'"arrow:pandas"' in encoded.whole()
    pandas.testing.assert_frame_equal(decode(encoded.whole())["table"], table)


def test_a_table_of_pandas_crosses_as_records_where_one_side_has_no_arrow() -> None:
    encoded = encode_value(FRAME, ())
    assert b'"records:pandas"' in encoded.whole()
    assert decode(encoded.whole(), plain=True) == [
        {"units": 1, "name": "a", "day": "2024-01-01T00:00:00"},
        {"units": 2, "name": None, "day": None},
    ]
    arrived = decode(encoded.whole())
    assert arrived["units"].tolist() == [1, 2]
    assert arrived["name"].isna().tolist() == [False, True]
    assert math.isnan(decode(encode_value(pandas.DataFrame({"x": [math.nan]})).whole(), plain=True)[0]["x"])


def test_an_index_with_a_meaning_becomes_a_column_of_records() -> None:
    assert list(crossed(FRAME.set_index("name"), ()).columns) == ["name", "units", "day"]


def test_a_table_that_arrow_cannot_hold_crosses_as_records() -> None:
    mixed = pandas.DataFrame({"x": [1, "a", None]})
    encoded = encode_value(mixed, ("arrow",))
    assert b'"records:pandas"' in encoded.whole()
    assert decode(encoded.whole(), plain=True) == [{"x": 1}, {"x": "a"}, {"x": None}]


def test_a_host_without_pyarrow_sends_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.protocol.tools.tables.find_spec", lambda name: None)
    assert b'"records:pandas"' in encode_value(FRAME, EVERYTHING).whole()


def test_bytes_in_a_table_need_arrow() -> None:
    table = pandas.DataFrame({"x": [b"\xff"]})
    assert crossed(table)["x"].tolist() == [b"\xff"]
    assert refusal({"t": table}, ()).startswith("result['t'] is a table with bytes in it")


@pytest.mark.parametrize("accepts", [EVERYTHING, ()])
def test_a_table_of_polars_stays_one(accepts: tuple[str, ...]) -> None:
    table = polars.DataFrame({"a": [1, None], "s": ["x", "é"]})
    arrived = crossed(table, accepts)
    assert isinstance(arrived, polars.DataFrame)
    assert arrived.equals(table)


@pytest.mark.parametrize("accepts", [EVERYTHING, ()])
def test_a_table_of_arrow_stays_one(accepts: tuple[str, ...]) -> None:
    table = pyarrow.table({"a": [1, 2], "s": ["x", None]})
    assert crossed(table, accepts).to_pylist() == table.to_pylist()
    assert crossed(table.to_batches()[0], accepts).to_pylist() == table.to_pylist()


def test_arrays_stay_arrays_where_the_other_side_has_numpy() -> None:
    array = numpy.arange(6, dtype="int16").reshape(2, 3).T
    arrived = crossed({"a": array})["a"]
    assert arrived.dtype == array.dtype
    assert (arrived == array).all()
    assert crossed(array, ()) == array.tolist()
    assert crossed(numpy.array(["2024-01-01"], dtype="M8[D]"), ()) == ["2024-01-01"]


def test_an_array_of_objects_crosses_as_a_list_of_what_they_are() -> None:
    assert crossed(numpy.array([1, Color.RED], dtype=object)) == [1, "red"]
    assert refusal(numpy.array([1, object()], dtype=object)) == "result[1] is an object"


def test_nothing_is_ever_pickled() -> None:
    class Unpicklable:
        def __reduce__(self) -> str:
            raise AssertionError("somebody pickled it")

    assert "is a Unpicklable" in refusal(numpy.array([Unpicklable()], dtype=object))
    assert "is a Unpicklable" in refusal(pandas.DataFrame({"x": [Unpicklable()]}))
