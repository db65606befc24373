"""Rebuilds pandas frames and series that the owner set from their descriptions."""

from __future__ import annotations

from array import array
from typing import Any


def rebuilt(told: dict[str, Any]) -> Any:
    """Rebuilds a frame or series from its description."""
    import pandas

    index = of_index(pandas, told["index"])
    if told["kind"] == "series":
        series = of_column(pandas, told["column"])
        series.index, series.name = index, of_name(told["name"])
        return series
    columns = [of_column(pandas, one) for one in told["data"]]
    names = of_index(pandas, told["columns"])
    # concat aligns by index, so all columns need the same one.
    for column in columns:
        column.index = index
    if not columns:
        return pandas.DataFrame(index=index, columns=names)
    frame = pandas.concat(columns, axis=1)
    frame.columns = names
    return frame


def of_index(pandas: Any, told: dict[str, Any]) -> Any:
    if told["kind"] == "range":
        return pandas.RangeIndex(told["start"], told["stop"], told["step"], name=of_name(told["name"]))
    if told["kind"] == "multi":
        levels = [of_column(pandas, one).array for one in told["levels"]]
        return pandas.MultiIndex.from_arrays(levels, names=[of_name(name) for name in told["names"]])
    return pandas.Index(of_column(pandas, told["column"]), name=of_name(told["name"]), tupleize_cols=False)


def of_name(name: Any) -> Any:
    return tuple(name) if isinstance(name, list) else name


def of_column(pandas: Any, told: dict[str, Any]) -> Any:
    kind = told["kind"]
    if kind == "numpy":
        return pandas.Series(told["data"])
    if kind == "zoned":
        return pandas.Series(told["data"]).dt.tz_localize("UTC").dt.tz_convert(told["zone"])
    if kind == "category":
        dtype = pandas.CategoricalDtype(pandas.Index(of_column(pandas, told["categories"])), ordered=told["ordered"])
        return pandas.Series(pandas.Categorical.from_codes(told["codes"], dtype=dtype))
    if kind == "masked":
        series = pandas.Series(told["data"]).astype(told["dtype"])
        series[told["mask"]] = pandas.NA
        return series
    if kind == "text":
        known = told["dtype"] != "str" or int(pandas.__version__.partition(".")[0]) >= 3
        return pandas.Series(of_texts(told["data"]), dtype=told["dtype"] if known else "object")
    return pandas.Series(told["values"], dtype=object)


def of_texts(data: bytes) -> list[Any]:
    """Decodes texts. A length of -1 stands for None, another negative one for NaN."""
    start = 4 * (int.from_bytes(data[:4], "little") + 1)
    texts: list[Any] = []
    for length in array("i", data[4:start]):
        if length < 0:
            texts.append(None if length == -1 else float("nan"))
        else:
            texts.append(str(data[start : start + length], "utf-8", "surrogatepass"))
            start += length
    return texts
