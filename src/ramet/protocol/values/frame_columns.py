"""Describes pandas frames and series by plain values, arrays and bytes, without loss and without pickles.

``ramet_guest/values/frames.py`` rebuilds them. ``ramet_guest/values/tables.py`` describes frames that come out of a
sandbox in the same format.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

_MASKED = frozenset(
    ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64", "boolean")
)
_NONE, _NAN = -1, -2


class NotDescribed(Exception):
    """Raised for a column of a kind that the format does not cover."""


def described(value: object) -> dict[str, object] | None:
    """Describe a frame or a series; return None for anything else. Raise NotDescribed."""
    if type(value).__module__.partition(".")[0] != "pandas":
        return None
    pandas: Any = sys.modules.get("pandas")
    if pandas is None:
        return None
    if isinstance(value, pandas.DataFrame):
        frame: Any = value
        columns = []
        for place in range(frame.shape[1]):
            try:
                columns.append(_column(pandas, frame.iloc[:, place]))
            except NotDescribed as error:
                raise NotDescribed(f"has the column {frame.columns[place]!r:.80}, which {error}") from None
        index, names = _index(pandas, frame.index), _index(pandas, frame.columns)
        return {"kind": "frame", "columns": names, "index": index, "data": columns}
    if isinstance(value, pandas.Series):
        series: Any = value
        column, index = _column(pandas, series), _index(pandas, series.index)
        return {"kind": "series", "name": _name(series.name), "index": index, "column": column}
    return None


def _index(pandas: Any, index: Any) -> dict[str, object]:
    if isinstance(index, pandas.RangeIndex):
        bounds = {"start": index.start, "stop": index.stop, "step": index.step}
        return {"kind": "range", **bounds, "name": _name(index.name)}
    names = [_name(name) for name in index.names]
    if isinstance(index, pandas.MultiIndex):
        levels = [_column(pandas, index.get_level_values(place).to_series()) for place in range(index.nlevels)]
        return {"kind": "multi", "levels": levels, "names": names}
    return {"kind": "column", "column": _column(pandas, index.to_series()), "name": names[0]}


def _name(name: Any) -> object:
    return list(name) if isinstance(name, tuple) else name


def _column(pandas: Any, series: Any) -> dict[str, object]:
    numpy: Any = sys.modules["numpy"]
    dtype = series.dtype
    if isinstance(dtype, numpy.dtype) and not dtype.hasobject:
        return {"kind": "numpy", "data": series.to_numpy()}
    if isinstance(dtype, pandas.DatetimeTZDtype):
        times = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return {"kind": "zoned", "data": times, "zone": str(dtype.tz)}
    if isinstance(dtype, pandas.CategoricalDtype):
        categories = _column(pandas, dtype.categories.to_series())
        codes = series.cat.codes.to_numpy()
        return {"kind": "category", "codes": codes, "categories": categories, "ordered": bool(dtype.ordered)}
    if str(dtype) in _MASKED:
        plain = "bool" if str(dtype) == "boolean" else str(dtype).lower()
        data = series.to_numpy(dtype=plain, na_value=0)
        return {"kind": "masked", "data": data, "mask": series.isna().to_numpy(), "dtype": str(dtype)}
    if isinstance(dtype, pandas.StringDtype):
        values: list[Any] = [one if isinstance(one, str) else None for one in series.to_numpy(dtype=object)]
        return {"kind": "text", "data": _texts(values), "dtype": "str" if str(dtype) == "str" else "string"}
    if isinstance(dtype, numpy.dtype):
        objects: list[Any] = list(series.to_numpy(dtype=object))
        if all(one is None or type(one) is str or (type(one) is float and one != one) for one in objects):
            return {"kind": "text", "data": _texts(objects), "dtype": "object"}
        return {"kind": "objects", "values": objects}
    raise NotDescribed(f"has the dtype {dtype}")


def _texts(values: list[Any]) -> bytes:
    """Encode texts as: u32 count | i32 length of each, negative for a missing one | all texts in UTF-8."""
    lengths, pieces = array("i"), []
    for value in values:
        if isinstance(value, str):
            pieces.append(value.encode("utf-8", "surrogatepass"))
            lengths.append(len(pieces[-1]))
        else:
            lengths.append(_NONE if value is None else _NAN)
    return b"".join((len(values).to_bytes(4, "little"), lengths.tobytes(), *pieces))
