"""Decodes a value that came out of a sandbox. Untrusted code may have written the bytes, so nothing in them is run.

The format has JSON, texts, and arrays of plain numbers: no pickles, and nothing that a library would have to parse in
good faith. Bytes that do not fit the format raise ProtocolError. ``ramet_guest/values/exchange.py`` is the other side.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from datetime import UTC, timedelta, timezone, tzinfo
from importlib import import_module
from io import BytesIO
from typing import Any

from ramet.errors import ProtocolError, ValueUnsupported
from ramet.protocol.values.value_bounds import JSON_BYTES_AT_MOST
from ramet_guest.wire import VALUE_MARK

_MARK = VALUE_MARK
_OFFSET = re.compile(r"UTC([+-])([0-9]{2}):([0-9]{2})")
_MASKED = frozenset(
    ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64", "boolean")
)
_TEXTS = frozenset(("object", "string", "str"))
# Kinds of elements that pandas stores in place: texts and records would become one object each.
_COLUMN_KINDS = "biufcmM"
# Many integers of more than 64 bits can share one hash, and building a dict of such keys would take hours.
_LONG_KEYS_AT_MOST = 1000
_KEY_BITS = 64
_MESSAGE_CHARACTERS = 200
_NAN = float("nan")


def decode(data: bytes) -> object:
    """Return the value. Raises ProtocolError, or ValueUnsupported if this Python lacks a library for it."""
    try:
        view = memoryview(data)
        start = 4 + int.from_bytes(view[:4], "little")
        if start > min(len(view), JSON_BYTES_AT_MOST + 4):
            raise ValueError("its JSON is cut short, or too long")
        message = json.loads(bytes(view[4:start]))
        attachments = _attachments(message["attachments"], view[start:])
        return _ValueReader(attachments).value(message["value"])
    except ValueUnsupported:
        raise
    except Exception as error:  # numpy, pandas and zoneinfo raise many kinds of exceptions
        problem = f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
        raise ProtocolError(f"the sandbox sent a value that makes no sense: {problem}") from None


def _attachments(lengths: Any, data: memoryview) -> list[tuple[str, memoryview]]:
    found, start = [], 0
    for kind, length in lengths:
        if type(length) is not int or not 0 <= length <= len(data) - start:
            raise ValueError("an attachment is cut short")
        found.append((str(kind), data[start : start + length]))
        start += length
    return found


class _ValueReader:
    """Builds one value from JSON and attachments."""

    def __init__(self, attachments: list[tuple[str, memoryview]]) -> None:
        # Each attachment may be used once: repeated, 100 MiB of them could become any number of gigabytes here.
        self._left = dict(enumerate(attachments))
        self._long_keys = 0

    def value(self, part: Any) -> Any:
        if type(part) is list:
            return [self.value(one) for one in part]
        if type(part) is not dict:
            return part
        mark = part.get(_MARK)
        if mark is None:
            return {key: self.value(one) for key, one in part.items()}
        if type(mark) is int:
            return self._attached(mark)
        return _MARKED[mark](self, part)

    def items(self, part: Any) -> dict[Any, Any]:
        return {self._key(key): self.value(one) for key, one in part["items"]}

    def frame(self, part: Any) -> Any:
        pandas = _library("pandas", "a DataFrame")
        columns = [self._column(pandas, one) for one in part["data"]]
        index = self._index(pandas, part["index"])
        names = self._index(pandas, part["columns"])
        for column in columns:
            column.index = index
        if not columns:
            if len(names):
                raise ValueError("names of columns that are not there")  # pandas would fill them
            return pandas.DataFrame(index=index, columns=names)
        frame = pandas.concat(columns, axis=1)
        frame.columns = names
        return frame

    def series(self, part: Any) -> Any:
        pandas = _library("pandas", "a Series")
        series = self._column(pandas, part["column"])
        series.index = self._index(pandas, part["index"])
        series.name = self._name(part["name"])
        return series

    def _key(self, part: Any) -> Any:
        if type(part) is int and part.bit_length() > _KEY_BITS:
            self._long_keys += 1
            if self._long_keys > _LONG_KEYS_AT_MOST:
                raise ValueError("too many keys of more than 64 bits")
        return self._text(part) if type(part) is dict else part

    def _text(self, part: Any) -> str:
        text = self.value(part)
        if not isinstance(text, str):
            raise TypeError("a key that is no text")
        return text

    def _name(self, part: Any) -> Any:
        """Return the name of a column or an index; pandas wants tuples where JSON has lists."""
        name = self.value(part)
        return tuple(name) if isinstance(name, list) else name

    def _index(self, pandas: Any, part: Any) -> Any:
        if part["kind"] == "range":
            numbers = [part[name] for name in ("start", "stop", "step")]
            if not all(type(number) is int for number in numbers):
                raise TypeError("a range of something else than whole numbers")
            return pandas.RangeIndex(*numbers, name=self._name(part["name"]))
        if part["kind"] == "multi":
            levels = [self._column(pandas, one).array for one in part["levels"]]
            return pandas.MultiIndex.from_arrays(levels, names=[self._name(name) for name in part["names"]])
        return pandas.Index(self._column(pandas, part["column"]), name=self._name(part["name"]), tupleize_cols=False)

    def _column(self, pandas: Any, part: Any) -> Any:
        kind = part["kind"]
        if kind == "numpy":
            return pandas.Series(self._array(part["data"]))
        if kind == "zoned":
            times = pandas.Series(self._array(part["data"]))
            return times.dt.tz_localize("UTC").dt.tz_convert(_zone(part["zone"]))
        if kind == "category":
            categories = pandas.Index(self._column(pandas, part["categories"]))
            dtype = pandas.CategoricalDtype(categories, ordered=part["ordered"] is True)
            return pandas.Series(pandas.Categorical.from_codes(self._array(part["codes"]), dtype=dtype))
        if kind == "masked":
            series = pandas.Series(self._array(part["data"])).astype(_one_of(_MASKED, part["dtype"]))
            mask = self._array(part["mask"])
            if mask.dtype != bool:
                raise TypeError("a mask of something else than flags")
            series[mask] = pandas.NA
            return series
        if kind == "text":
            dtype = _one_of(_TEXTS, part["dtype"])
            known = dtype != "str" or int(pandas.__version__.partition(".")[0]) >= 3
            return pandas.Series(self.value(part["data"]), dtype=dtype if known else "object")
        if kind == "objects":
            return pandas.Series(self.value(part["values"]), dtype=object)
        raise ValueError(f"a column of the kind {kind!r:.40}")

    def _array(self, part: Any) -> Any:
        kind, data = self._left.pop(part[_MARK])
        if kind != "npy":
            raise TypeError("a column that is no array")
        numbers = _read_npy(data)
        if numbers.dtype.kind not in _COLUMN_KINDS:
            raise TypeError("a column of something else than numbers and times")
        if numbers.ndim != 1:
            raise ValueError("a column with more than one dimension")
        return numbers

    def _attached(self, place: int) -> Any:
        kind, data = self._left.pop(place)
        return _ATTACHED[kind](data)


_MARKED: dict[object, Callable[[_ValueReader, Any], Any]] = {
    "dict": _ValueReader.items,
    "frame": _ValueReader.frame,
    "series": _ValueReader.series,
}


def _read_npy(data: memoryview) -> Any:
    """Read what numpy.save wrote. Allocates nothing before the length in its header is found to be true."""
    numpy = _library("numpy", "an array")
    file = BytesIO(data[: 16 * 1024])
    version = numpy.lib.format.read_magic(file)
    read_header = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}[version]
    shape, fortran_order, dtype = getattr(numpy.lib.format, read_header)(file)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("an array of objects, or of nothing")
    count = 1
    for length in shape:
        count *= length
    body = data[file.tell() :]
    if count * dtype.itemsize != len(body):
        raise ValueError("an array that is not as long as it says")
    flat = numpy.frombuffer(body, dtype=dtype).copy()  # writable, and independent of the received bytes
    return flat.reshape(shape[::-1]).transpose() if fortran_order else flat.reshape(shape)


def _read_texts(data: memoryview) -> list[object]:
    count = int.from_bytes(data[:4], "little")
    if 4 * (count + 1) > len(data):
        raise ValueError("fewer texts than there should be")
    lengths = array("i", bytes(data[4 : 4 * (count + 1)]))
    rest, start = data[4 * (count + 1) :], 0
    texts: list[object] = []
    for length in lengths:
        if length < 0:
            texts.append(None if length == -1 else _NAN)
            continue
        if start + length > len(rest):
            raise ValueError("a text is cut short")
        texts.append(_read_text(rest[start : start + length]))
        start += length
    return texts


def _read_text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


_ATTACHED: dict[str, Callable[[memoryview], Any]] = {
    "bytes": bytes,
    "text": _read_text,
    "npy": _read_npy,
    "texts": _read_texts,
}


def _zone(name: Any) -> tzinfo:
    """Return a time zone by its name, which must not reach pandas: pandas opens the file at a path."""
    if not isinstance(name, str):
        raise TypeError("a zone that is no text")
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        distance = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(distance if offset[1] == "+" else -distance)
    from zoneinfo import ZoneInfo

    return UTC if name == "UTC" else ZoneInfo(name)


def _one_of(allowed: frozenset[str], name: object) -> str:
    if not isinstance(name, str) or name not in allowed:
        raise ValueError(f"a dtype {name!r:.40}")
    return name


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ValueUnsupported(
            f"the value holds {what}, and this Python has no {name}",
            hint=f"install {name} here, or make plain data of it in the sandbox first, with tolist() or to_dict()",
        ) from None
