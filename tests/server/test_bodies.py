"""JSON bodies are read strictly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.doors.http.requests.bodies import JsonBody, parse_object
from ramet.errors import InvalidArgument

_TEXTS = st.text(st.characters(codec="utf-8"))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
)


@pytest.mark.deep("fuzz")
@given(st.dictionaries(_TEXTS, _VALUES))
def test_objects_are_read_as_they_were_written(value: dict[str, object]) -> None:
    assert parse_object(json.dumps(value).encode()) == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary())
def test_no_bytes_do_anything_but_parse_or_be_refused(data: bytes) -> None:
    try:
        read = parse_object(data)
    except InvalidArgument:
        return
    assert isinstance(read, dict)


@pytest.mark.parametrize("data", [b"", b"  \r\n"])
def test_nothing_is_an_empty_object(data: bytes) -> None:
    assert parse_object(data) == {}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":{"b":1,"b":2}}', "twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\udfff":1}', "surrogate"),
        (b'{"a":1} x', "JSON"),
        (b"[1]", "array"),
        (b'"text"', "string"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b'{"a":' + b"9" * 10_000 + b"}", "JSON"),
        (b"\xef\xbb\xbf{}", "JSON"),
    ],
)
def test_what_is_not_one_object_of_json_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        parse_object(data)


def test_a_field_that_nobody_asks_for_is_refused() -> None:
    body = JsonBody({"code": "1", "kode": "2"})
    body.text("code")
    with pytest.raises(InvalidArgument, match="unknown field .kode."):
        body.done()


@pytest.mark.parametrize("value", [None, 1, True, [], {}])
def test_a_text_is_a_string(value: object) -> None:
    with pytest.raises(InvalidArgument, match="^code (must be a string, got |is missing; it must be a string)"):
        JsonBody({"code": value}).text("code")


@pytest.mark.parametrize("value", ["1", True, 1.5, [1], 1e400])
def test_a_whole_number_is_one(value: object) -> None:
    with pytest.raises(InvalidArgument, match="^n must be a whole number, got "):
        JsonBody({"n": value}).whole("n")


def test_a_number_without_a_fraction_is_whole() -> None:
    assert JsonBody({"n": 3.0}).whole("n") == 3


@pytest.mark.parametrize("value", ["1", True, [], 1e400, 10**400])
def test_a_number_is_finite(value: object) -> None:
    with pytest.raises(InvalidArgument, match="^timeout must be a finite number below .*, got "):
        JsonBody({"timeout": value}).optional_number("timeout")


def test_null_is_as_good_as_nothing() -> None:
    body = JsonBody({"timeout": None, "persistent": None, "format": None})
    assert body.optional_number("timeout") is None
    assert body.flag("persistent", True)
    assert body.choice("format", ("a", "b"), "a") == "a"
    body.done()
