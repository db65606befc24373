"""Values out of a sandbox, as hostile code may have written them: nothing is run, nothing is believed."""

from __future__ import annotations

import asyncio
import io
import json
import pickle
from typing import Any

import numpy
import pytest

from ramet import InvalidArgument, ProtocolError, ValueUnsupported
from ramet.client import value_decoding
from ramet.client.value_assignment import AssignName, RemoveFile, UploadValue, assign
from ramet.protocol.values.value_bounds import JSON_BYTES_AT_MOST, check_name


def wire(value: object, *attachments: tuple[str, bytes]) -> bytes:
    told = {"value": value, "attachments": [[kind, len(data)] for kind, data in attachments]}
    text = json.dumps(told).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, *(data for _, data in attachments)))


def npy(array: Any) -> bytes:
    written = io.BytesIO()
    numpy.save(written, array)
    return written.getvalue()


def test_values_come_as_what_they_are() -> None:
    assert value_decoding.decode(wire({"a": [1, 2.5, None, True, "x"]})) == {"a": [1, 2.5, None, True, "x"]}
    assert value_decoding.decode(
        wire({"$ramet": "dict", "items": [[1, "a"], [None, {"$ramet": 0}]]}, ("bytes", b"b"))
    ) == {
        1: "a",
        None: b"b",
    }
    numbers = numpy.arange(6, dtype="<i2").reshape(2, 3)
    for array in (numbers, numpy.asfortranarray(numbers), numbers[::2], numpy.array(["2020-01-01"], "M8[D]")):
        decoded: Any = value_decoding.decode(wire({"$ramet": 0}, ("npy", npy(array))))
        assert numpy.array_equal(decoded, array)
        assert decoded.dtype == array.dtype
        assert decoded.flags.writeable


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("something was unpickled",))


def lying_npy() -> bytes:
    """It says that it is a petabyte long."""
    return npy(numpy.zeros(10, "<i8")).replace(b"(10,)", b"(10000000000000,)").replace(b" " * 12 + b"\n", b"\n")


def odd_header(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff",
        (JSON_BYTES_AT_MOST + 1).to_bytes(4, "little") + b"[" * (JSON_BYTES_AT_MOST + 1),
        b"\x02\x00\x00\x00[]",
        wire({"$ramet": 3}),
        wire({"$ramet": -1}, ("bytes", b"x")),
        wire({"$ramet": "eval", "code": "1"}),
        wire({"$ramet": "dict", "items": [[[1], 2]]}),
        wire({"$ramet": "dict", "items": 7}),
        wire({"$ramet": 0}, ("pickle", pickle.dumps(Bomb()))),
        wire({"$ramet": 0}, ("npy", npy(numpy.array([Bomb()], dtype=object)))),
        wire({"$ramet": 0}, ("npy", lying_npy())),
        wire({"$ramet": 0}, ("npy", b"\x93NUMPY\x01\x00\x04\x00{}  ")),
        wire({"$ramet": 0}, ("npy", pickle.dumps(Bomb()))),
        wire({"$ramet": 0}, ("texts", b"\xff\xff\xff\x7f")),
        wire({"$ramet": 0}, ("texts", b"\x01\x00\x00\x00\x09\x00\x00\x00ab")),
        wire({"$ramet": 0}, ("text", b"\xff\xfe")),
        wire("x", ("bytes", b"abc"))[:-1],
        wire([{"$ramet": 0}, {"$ramet": 0}], ("bytes", b"the same, told twice")),
        wire({"$ramet": "dict", "items": [[key * (2**61 - 1), 0] for key in range(9, 5000)]}),
        wire({"$ramet": 0}, ("npy", odd_header(b"{'descr': '<i8', 'shape': (1,), 'fortran_order': [}"))),
        wire({"$ramet": 0}, ("npy", odd_header(b"'''"))),
        wire({"$ramet": 0}, ("npy", odd_header(b"(" * 9000))),
    ],
)
def test_what_makes_no_sense_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="makes no sense"):
        value_decoding.decode(data)


def test_json_that_is_nested_beyond_reason_is_a_protocol_error() -> None:
    text = b'{"value":' + b"[" * 200_000 + b"]" * 200_000 + b',"attachments":[]}'
    with pytest.raises(ProtocolError):
        value_decoding.decode(len(text).to_bytes(4, "little") + text)


def frame(column: dict[str, object], **index: object) -> dict[str, object]:
    whole = {"kind": "range", "start": 0, "stop": 1, "step": 1, "name": None}
    names = {"kind": "column", "name": None, "column": {"kind": "objects", "values": ["c"]}}
    return {"$ramet": "frame", "columns": names, "index": {**whole, **index}, "data": [column]}


@pytest.mark.parametrize(
    "told",
    [
        frame({"kind": "zoned", "data": {"$ramet": 0}, "zone": "dateutil//etc/passwd"}),
        frame({"kind": "zoned", "data": {"$ramet": 0}, "zone": "../../../../etc/passwd"}),
        frame({"kind": "zoned", "data": {"$ramet": 0}, "zone": "/etc/localtime"}),
        frame({"kind": "masked", "data": {"$ramet": 0}, "mask": {"$ramet": 0}, "dtype": "object"}),
        frame({"kind": "text", "data": ["a"], "dtype": "category"}),
        frame({"kind": "else"}),
        frame({"kind": "numpy", "data": {"$ramet": 0}}, stop=10**15),
        frame({"kind": "numpy", "data": {"$ramet": 0}}, stop="1"),
        frame({"kind": "numpy", "data": {"$ramet": 1}}),
        frame({"kind": "zoned", "data": {"$ramet": 0}, "zone": "America"}),  # a folder
        frame({"kind": "zoned", "data": {"$ramet": 0}, "zone": "x" * 5000}),
        frame({"kind": "numpy", "data": {"$ramet": 2}}),
        frame({"kind": "masked", "data": {"$ramet": 0}, "mask": {"$ramet": 3}, "dtype": "Int64"}),
        {**frame({}, stop=10**5), "data": []},
        {
            **frame({}, stop=0),
            "data": [],
            "columns": {"kind": "range", "start": 0, "stop": 10**5, "step": 1, "name": ""},
        },
    ],
)
def test_a_frame_that_lies_is_a_protocol_error(told: dict[str, object]) -> None:
    arrays = numpy.array(["2020-01-01"], "M8[ns]"), numpy.zeros((1, 1)), numpy.array([b"x"]), numpy.array([0])
    with pytest.raises(ProtocolError) as refused:
        value_decoding.decode(wire(told, *(("npy", npy(array)) for array in arrays)))
    assert len(str(refused.value)) < 400


def test_a_value_that_needs_a_library_which_is_not_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(value_decoding, "import_module", missing)
    with pytest.raises(ValueUnsupported, match="has no numpy"):
        value_decoding.decode(wire({"$ramet": 0}, ("npy", npy(numpy.zeros(2)))))


@pytest.mark.parametrize("name", ["", "a b", "1a", "a.b", "class", "a" * 201, 3, None])
def test_what_cannot_be_a_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidArgument, match="name must be"):
        check_name(name)


def test_a_name_is_written_as_python_writes_it() -> None:
    assert check_name("ﬁle") == "file"
    assert check_name("číslo") == "číslo"


@pytest.mark.parametrize("error", [ConnectionError(), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_small_value_travels_in_the_request_and_a_large_one_in_a_file_that_is_removed_again(
    error: BaseException,
) -> None:
    (small,) = list(assign("x", [1, 2]))
    assert isinstance(small, AssignName)
    assert small.path is None
    steps = assign("x", b"y" * 2_000_000)
    upload, assigned = next(steps), next(steps)
    assert isinstance(upload, UploadValue)
    assert isinstance(assigned, AssignName)
    assert assigned.path == upload.path
    removed = steps.throw(error)
    assert removed == RemoveFile(upload.path)
    with pytest.raises(type(error)):
        next(steps)


@pytest.mark.parametrize(("value", "told"), [(object(), "x is an object"), ({"a": [print]}, r"x\['a'\]\[0\] is a")])
def test_a_value_that_cannot_be_given_is_named_with_its_place(value: object, told: str) -> None:
    with pytest.raises(ValueUnsupported, match=told) as refused:
        assign("x", value)
    assert "upload" in str(refused.value)
