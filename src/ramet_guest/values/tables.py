"""Takes numpy arrays and pandas frames and series apart into arrays and texts, without pickles.

A column is one of

    {"kind": "numpy", "data": array}
    {"kind": "zoned", "data": array of times in UTC, "zone": name}
    {"kind": "category", "codes": array, "categories": column, "ordered": flag}
    {"kind": "masked", "data": array, "mask": array, "dtype": name}
    {"kind": "text", "data": texts, "dtype": name}
    {"kind": "objects", "values": [V, ...]}

and an index, or the names of columns, {"kind": "range", ...}, {"kind": "column", ...} or {"kind": "multi", ...}.
"""

from __future__ import annotations

import sys
from array import array
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ramet_guest.comparing.pieces import name_of

if TYPE_CHECKING:
    from ramet_guest.values.exchange import Writer

_MASKED = frozenset(("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "boolean"))
_MASKED_FLOATS = frozenset(("Float32", "Float64"))
_NONE, _NAN = -1, -2


class ValueRefused(Exception):
    """Raised when a value cannot be sent or set.

    `kind`: "unknown", "unsupported", "large", "format" or "failed".
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self._steps: list[str] = []

    def told(self, name: str) -> str:
        """Returns the message, with the path to the part that is at fault."""
        return f"{name}{''.join(reversed(self._steps))} {self}"

    def inside(self, key: object) -> ValueRefused:
        """Adds the next outer step to the path."""
        self._steps.append(f"[{key!r:.80}]")
        return self


def of_library(writer: Writer, value: Any) -> tuple[Any] | None:
    """Encodes a value of a known library. Returns it in a tuple of one, or None if the library is not known here."""
    library = type(value).__module__.partition(".")[0]
    module: Any = sys.modules.get(library)
    if module is None:
        return None
    if library == "numpy":
        if isinstance(value, module.ndarray):
            return (of_array(writer, value),)
        if isinstance(value, module.datetime64):
            return (None if module.isnat(value) else str(value),)
        if isinstance(value, module.generic) and not isinstance(value.item(), module.generic):
            return (writer.plain(value.item()),)
    if library == "pandas":
        if value is getattr(module, "NA", None) or value is getattr(module, "NaT", None):
            return (None,)
        if isinstance(value, module.DataFrame):
            return (of_frame(writer, value, module),)
        if isinstance(value, module.Series):
            name = writer.item("name", value.name)
            mark = {"$ramet": "series", "name": name, "index": of_index(writer, value.index, module)}
            return ({**mark, "column": of_column(writer, value, module)},)
    return None


def of_array(writer: Writer, value: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    masked = getattr(numpy, "ma", None)
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise refused("is a masked array of numpy")
    if value.dtype.hasobject:
        return writer.plain(value.tolist())
    if not value.dtype.itemsize:
        raise refused("is an array whose elements have no bytes")
    writer.room(value.nbytes)
    plain = numpy.asarray(value)
    if not plain.flags.c_contiguous and not plain.flags.f_contiguous:
        plain = numpy.ascontiguousarray(plain)
    written = BytesIO()
    numpy.lib.format.write_array_header_1_0(written, numpy.lib.format.header_data_from_array_1_0(plain))
    # A view of its own memory, not a copy: there may be no room for another hundred megabytes.
    ordered = plain if plain.flags.c_contiguous else plain.transpose()
    return writer.attach("npy", written.getvalue(), memoryview(ordered.reshape(-1).view(numpy.uint8)))


def of_frame(writer: Writer, value: Any, pandas: Any) -> Any:
    columns = []
    for place in range(value.shape[1]):
        try:
            columns.append(of_column(writer, value.iloc[:, place], pandas))
        except Exception as error:
            raise inside(error, value.columns[place]) from None
    return {
        "$ramet": "frame",
        "columns": of_index(writer, value.columns, pandas),
        "index": of_index(writer, value.index, pandas),
        "data": columns,
    }


def of_index(writer: Writer, index: Any, pandas: Any) -> Any:
    if isinstance(index, pandas.RangeIndex):
        name = writer.item("index", index.name)
        return {"kind": "range", "start": index.start, "stop": index.stop, "step": index.step, "name": name}
    names = [writer.item("index", name) for name in index.names]
    if isinstance(index, pandas.MultiIndex):
        levels = [
            of_column(writer, index.get_level_values(place).to_series(), pandas) for place in range(index.nlevels)
        ]
        return {"kind": "multi", "levels": levels, "names": names}
    return {"kind": "column", "column": of_column(writer, index.to_series(), pandas), "name": names[0]}


def of_column(writer: Writer, series: Any, pandas: Any) -> Any:
    """Describes a column in the first format that keeps its dtype. Raises ValueRefused for other dtypes."""
    numpy: Any = sys.modules["numpy"]
    dtype = series.dtype
    if isinstance(dtype, numpy.dtype) and not dtype.hasobject:
        return {"kind": "numpy", "data": of_array(writer, series.to_numpy())}
    if isinstance(dtype, pandas.DatetimeTZDtype):
        times = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return {"kind": "zoned", "data": of_array(writer, times), "zone": str(dtype.tz)}
    if isinstance(dtype, pandas.CategoricalDtype):
        categories = dtype.categories.to_series()
        return {
            "kind": "category",
            "codes": of_array(writer, series.cat.codes.to_numpy()),
            "categories": of_column(writer, categories, pandas),
            "ordered": bool(dtype.ordered),
        }
    if str(dtype) in _MASKED or str(dtype) in _MASKED_FLOATS:
        plain = str(dtype).lower() if str(dtype) != "boolean" else "bool"
        data = series.to_numpy(dtype=plain, na_value=0)
        mask = series.isna().to_numpy()
        return {"kind": "masked", "data": of_array(writer, data), "mask": of_array(writer, mask), "dtype": str(dtype)}
    if isinstance(dtype, pandas.StringDtype):
        values: list[Any] = [one if isinstance(one, str) else None for one in series.to_numpy(dtype=object)]
        return {"kind": "text", "data": texts(writer, values), "dtype": "str" if str(dtype) == "str" else "string"}
    if isinstance(dtype, numpy.dtype):
        values = list(series.to_numpy(dtype=object))
        if all(one is None or type(one) is str or (type(one) is float and one != one) for one in values):
            return {"kind": "text", "data": texts(writer, values), "dtype": "object"}
        return {"kind": "objects", "values": writer.plain(values)}
    raise refused(f"has the dtype {dtype}")


def texts(writer: Writer, values: list[Any]) -> Any:
    """Encodes texts as: u32 count | i32 length of each, negative for a missing one | all texts in UTF-8."""
    lengths, pieces, size = array("i"), [], 4 * (len(values) + 1)
    for value in values:
        if isinstance(value, str):
            piece = value.encode("utf-8", "surrogatepass")
            pieces.append(piece)
            lengths.append(len(piece))
            size += len(piece)
        else:
            lengths.append(_NONE if value is None else _NAN)
    writer.room(size)
    return writer.attach("texts", b"".join((len(values).to_bytes(4, "little"), lengths.tobytes(), *pieces)))


def refused(problem: str) -> ValueRefused:
    return ValueRefused("unsupported", problem)


def inside(error: Exception, key: object) -> ValueRefused:
    if isinstance(error, ValueRefused):
        return error.inside(key)
    return ValueRefused("failed", f"could not be written: {name_of(type(error))}: {error}").inside(key)
