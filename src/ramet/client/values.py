"""A value out of a sandbox, made of the bytes that came. Code in there may have written them: nothing in them is run.

JSON, texts, and arrays of plain numbers are all there is: no pickles, and no format that a library would have to be
trusted to parse. Whatever does not fit together is a ProtocolError. See ``ramet_guest/values.py`` for the other side.
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
from ramet.protocol.values import JSON_BYTES_AT_MOST

_MARK = "$ramet"
_OFFSET = re.compile(r"UTC([+-])([0-9]{2}):([0-9]{2})")
_MASKED = frozenset(
    ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64", "boolean")
)
_TEXTS = frozenset(("object", "string", "str"))
# Kinds of elements that pandas keeps as they are: of texts and records it would make an object each.
_COLUMN_KINDS = "biufcmM"
# Whole numbers of more than 64 bits can all have one hash, and a dict of many such keys takes hours to make.
_LONG_KEYS_AT_MOST = 1000
_KEY_BITS = 64
_MESSAGE_CHARACTERS = 200
_NAN = float("nan")


def decode(data: bytes) -> object:
    """The value. Raises ProtocolError, or ValueUnsupported where this Python has not the library that it needs."""
    try:
        view = memoryview(data)
        start = 4 + int.from_bytes(view[:4], "little")
        if start > min(len(view), JSON_BYTES_AT_MOST + 4):
            raise ValueError("its JSON is cut short, or too long")
        told = json.loads(bytes(view[4:start]))
        attachments = _attachments(told["attachments"], view[start:])
        return _Reader(attachments).value(told["value"])
    except ValueUnsupported:
        raise
    except Exception as error:  # of numpy, pandas and zoneinfo, too, which raise what they like
        problem = f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
        raise ProtocolError(f"the sandbox told a value that makes no sense: {problem}") from None


def _attachments(described: Any, data: memoryview) -> list[tuple[str, memoryview]]:
    found, start = [], 0
    for kind, length in described:
        if type(length) is not int or not 0 <= length <= len(data) - start:
            raise ValueError("an attachment is cut short")
        found.append((str(kind), data[start : start + length]))
        start += length
    return found


class _Reader:
    """Puts one value together."""

    def __init__(self, attachments: list[tuple[str, memoryview]]) -> None:
        # Each stands for one part of the value: told twice, a hundred megabytes would become any number of them.
        self._left = dict(enumerate(attachments))
        self._long_keys = 0

    def value(self, told: Any) -> Any:
        if type(told) is list:
            return [self.value(one) for one in told]
        if type(told) is not dict:
            return told
        mark = told.get(_MARK)
        if mark is None:
            return {key: self.value(one) for key, one in told.items()}
        if type(mark) is int:
            return self._attached(mark)
        return _MARKED[mark](self, told)

    def items(self, told: Any) -> dict[Any, Any]:
        return {self._key(key): self.value(one) for key, one in told["items"]}

    def frame(self, told: Any) -> Any:
        pandas = _library("pandas", "a DataFrame")
        columns = [self._column(pandas, one) for one in told["data"]]
        index = self._index(pandas, told["index"])
        names = self._index(pandas, told["columns"])
        for column in columns:
            column.index = index
        if not columns:
            if len(names):
                raise ValueError("names of columns that are not there")  # pandas would fill them
            return pandas.DataFrame(index=index, columns=names)
        frame = pandas.concat(columns, axis=1)
        frame.columns = names
        return frame

    def series(self, told: Any) -> Any:
        pandas = _library("pandas", "a Series")
        series = self._column(pandas, told["column"])
        series.index = self._index(pandas, told["index"])
        series.name = self._name(told["name"])
        return series

    def _key(self, told: Any) -> Any:
        if type(told) is int and told.bit_length() > _KEY_BITS:
            self._long_keys += 1
            if self._long_keys > _LONG_KEYS_AT_MOST:
                raise ValueError("too many keys of more than 64 bits")
        return self._text(told) if type(told) is dict else told

    def _text(self, told: Any) -> str:
        text = self.value(told)
        if not isinstance(text, str):
            raise TypeError("a key that is no text")
        return text

    def _name(self, told: Any) -> Any:
        """Of a column or an index; pandas wants tuples where JSON has lists."""
        name = self.value(told)
        return tuple(name) if isinstance(name, list) else name

    def _index(self, pandas: Any, told: Any) -> Any:
        if told["kind"] == "range":
            numbers = [told[name] for name in ("start", "stop", "step")]
            if not all(type(number) is int for number in numbers):
                raise TypeError("a range of something else than whole numbers")
            return pandas.RangeIndex(*numbers, name=self._name(told["name"]))
        if told["kind"] == "multi":
            levels = [self._column(pandas, one).array for one in told["levels"]]
            return pandas.MultiIndex.from_arrays(levels, names=[self._name(name) for name in told["names"]])
        return pandas.Index(self._column(pandas, told["column"]), name=self._name(told["name"]), tupleize_cols=False)

    def _column(self, pandas: Any, told: Any) -> Any:
        kind = told["kind"]
        if kind == "numpy":
            return pandas.Series(self._array(told["data"]))
        if kind == "zoned":
            times = pandas.Series(self._array(told["data"]))
            return times.dt.tz_localize("UTC").dt.tz_convert(_zone(told["zone"]))
        if kind == "category":
            categories = pandas.Index(self._column(pandas, told["categories"]))
            dtype = pandas.CategoricalDtype(categories, ordered=told["ordered"] is True)
            return pandas.Series(pandas.Categorical.from_codes(self._array(told["codes"]), dtype=dtype))
        if kind == "masked":
            series = pandas.Series(self._array(told["data"])).astype(_one_of(_MASKED, told["dtype"]))
            mask = self._array(told["mask"])
            if mask.dtype != bool:
                raise TypeError("a mask of something else than flags")
            series[mask] = pandas.NA
            return series
        if kind == "text":
            dtype = _one_of(_TEXTS, told["dtype"])
            known = dtype != "str" or int(pandas.__version__.partition(".")[0]) >= 3
            return pandas.Series(self.value(told["data"]), dtype=dtype if known else "object")
        if kind == "objects":
            return pandas.Series(self.value(told["values"]), dtype=object)
        raise ValueError(f"a column of the kind {kind!r:.40}")

    def _array(self, told: Any) -> Any:
        kind, data = self._left.pop(told[_MARK])
        if kind != "npy":
            raise TypeError("a column that is no array")
        numbers = _of_npy(data)
        if numbers.dtype.kind not in _COLUMN_KINDS:
            raise TypeError("a column of something else than numbers and times")
        if numbers.ndim != 1:
            raise ValueError("a column with more than one dimension")
        return numbers

    def _attached(self, place: int) -> Any:
        kind, data = self._left.pop(place)
        return _ATTACHED[kind](data)


_MARKED: dict[object, Callable[[_Reader, Any], Any]] = {
    "dict": _Reader.items,
    "frame": _Reader.frame,
    "series": _Reader.series,
}


def _of_npy(data: memoryview) -> Any:
    """Of what numpy.save wrote. Its header says how much follows: nothing is allocated before that is found true."""
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
    flat = numpy.frombuffer(body, dtype=dtype).copy()  # writable, and apart from the bytes that came
    return flat.reshape(shape[::-1]).transpose() if fortran_order else flat.reshape(shape)


def _of_texts(data: memoryview) -> list[object]:
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
        texts.append(_of_text(rest[start : start + length]))
        start += length
    return texts


def _of_text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


_ATTACHED: dict[str, Callable[[memoryview], Any]] = {
    "bytes": bytes,
    "text": _of_text,
    "npy": _of_npy,
    "texts": _of_texts,
}


def _zone(name: Any) -> tzinfo:
    """By name: pandas would open any file for a name that is one."""
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
