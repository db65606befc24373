"""Encodes tables and arrays that a tool returned, in formats that the caller can read.

It does not import pandas, polars, pyarrow or numpy: a program that holds such a value has already imported the library.
The one exception is pyarrow, to write a pandas table if both sides have it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import Any, NamedTuple

ARROW = "arrow"
NPY = "npy"

WriteCells = Callable[[object], bytes]


class Attachment(NamedTuple):
    """Bytes that follow the JSON of a value, and their kind."""

    kind: str
    data: bytes | memoryview


class PlainCells(NamedTuple):
    """A value that is plain after all."""

    values: object


def attachment(value: object, accepts: Collection[str], write_cells: WriteCells) -> Attachment | PlainCells | None:
    """Encode a table, an array or a numpy number; return None for anything else."""
    library = type(value).__module__.partition(".")[0]
    write = _WRITERS.get(library)
    # A class can claim any module, so look at what the library itself defines.
    module: Any = sys.modules.get(library)
    return None if write is None or module is None else write(module, value, accepts, write_cells)


# One function per library. The modules are untyped here: they are the user's, of any version.


def _of_pandas(
    pandas: Any, value: Any, accepts: Collection[str], write_cells: WriteCells
) -> Attachment | PlainCells | None:
    if value is getattr(pandas, "NA", None):
        return PlainCells(None)
    if not isinstance(value, pandas.DataFrame):
        return None
    if ARROW in accepts and find_spec("pyarrow") is not None:
        arrow = import_module("pyarrow")
        try:
            return Attachment("arrow:pandas", _stream(arrow, arrow.Table.from_pandas(value)))
        except (arrow.ArrowInvalid, arrow.ArrowTypeError, arrow.ArrowNotImplementedError, ValueError):
            pass  # columns of mixed types, or two columns of one name
    if not isinstance(value.index, pandas.RangeIndex):
        value = value.reset_index(allow_duplicates=True)
    # A missing value becomes null, but stays NaN in columns of floats.
    missing = value.isna() & [getattr(kind, "kind", "O") != "f" for kind in value.dtypes]
    rows = [
        [None if gone else cell for cell, gone in zip(row, flags, strict=True)]
        for row, flags in zip(value.itertuples(index=False, name=None), missing.to_numpy().tolist(), strict=True)
    ]
    return _records("pandas", value.columns, rows, write_cells)


def _of_polars(
    polars: Any, value: Any, accepts: Collection[str], write_cells: WriteCells
) -> Attachment | PlainCells | None:
    if not isinstance(value, polars.DataFrame):
        return None
    if ARROW in accepts:
        written = BytesIO()
        # Not every pyarrow reads the newer string types.
        value.write_ipc_stream(written, compat_level=polars.CompatLevel.oldest())
        return Attachment("arrow:polars", written.getbuffer())
    return _records("polars", value.columns, value.rows(), write_cells)


def _of_arrow(
    arrow: Any, value: Any, accepts: Collection[str], write_cells: WriteCells
) -> Attachment | PlainCells | None:
    if isinstance(value, arrow.RecordBatch):
        value = arrow.Table.from_batches([value])
    if not isinstance(value, arrow.Table):
        return None
    if ARROW in accepts:
        return Attachment("arrow:table", _stream(arrow, value))
    columns = [column.to_pylist() for column in value.columns]
    return _records("table", value.column_names, list(zip(*columns, strict=True)), write_cells)


def _of_numpy(
    numpy: Any, value: Any, accepts: Collection[str], write_cells: WriteCells
) -> Attachment | PlainCells | None:
    if isinstance(value, numpy.datetime64):
        return PlainCells(None if numpy.isnat(value) else str(value))
    if isinstance(value, numpy.generic):
        plain = value.item()
        return None if isinstance(plain, numpy.generic) else PlainCells(plain)
    if not isinstance(value, numpy.ndarray):
        return None
    if NPY in accepts and not value.dtype.hasobject:
        written = BytesIO()
        numpy.save(written, value, allow_pickle=False)
        return Attachment("npy", written.getbuffer())
    if value.dtype.kind in "mM":
        value = value.astype(str)
    return PlainCells(value.tolist())


_WRITERS: dict[str, Callable[[Any, Any, Collection[str], WriteCells], Attachment | PlainCells | None]] = {
    "pandas": _of_pandas,
    "polars": _of_polars,
    "pyarrow": _of_arrow,
    "numpy": _of_numpy,
}


def _stream(arrow: Any, table: Any) -> memoryview:
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def _records(library: str, columns: Any, rows: list[Any], write_cells: WriteCells) -> Attachment:
    names = [name if isinstance(name, str) or type(name) is int else str(name) for name in columns]
    return Attachment(f"records:{library}", write_cells({"columns": names, "data": rows}))
