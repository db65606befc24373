"""Decodes the value that a tool returned.

    u32 LE length of the JSON | {"value": V, "attachments": [[kind, length], ...]} | attachment 0 | attachment 1 ...

In V, {"$ramet": n} stands for attachment n, and {"$ramet": "dict", "items": [[key, V], ...]} for a dict that has such a
key itself. Libraries are imported when an attachment needs them; `plain` needs none.
"""

from __future__ import annotations

from ramet_guest.tools import json_reader
from ramet_guest.wire import VALUE_MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARK = VALUE_MARK


def decode(blob: bytes | bytearray | memoryview, plain: bool = False) -> Any:
    """Decodes a value. Raises ValueError if it is cut short or has an attachment of an unknown kind."""
    view = memoryview(blob)
    start = 4 + int.from_bytes(view[:4], "little")
    text = str(view[4:start], "utf-8")
    described = json_reader.read(text)
    value, kinds = described["value"], described["attachments"]
    # The usual value has no stand-ins, so that nothing needs to be replaced.
    if not kinds and MARK not in text:
        return value
    attachments = []
    for kind, length in kinds:
        end = start + length
        if end > len(view):
            raise ValueError("an attachment is cut short")
        attachments.append(attachment(kind, view[start:end], plain))
        start = end
    return restored(value, attachments)


def restored(value: Any, attachments: list[Any]) -> Any:
    """Replaces stand-ins in place, because values can have a hundred megabytes."""
    whole = [value]
    waiting: list[Any] = [whole]
    while waiting:
        container = waiting.pop()
        for key, inside in enumerate(container) if type(container) is list else list(container.items()):
            if type(inside) is dict and MARK in inside:
                mark = inside[MARK]
                if type(mark) is int:
                    container[key] = attachments[mark]
                    continue
                container[key] = inside = dict(inside["items"])
            if type(inside) is list or type(inside) is dict:
                waiting.append(inside)
    return whole[0]


def attachment(kind: str, data: memoryview, plain: bool) -> Any:
    if kind == "bytes":
        return bytes(data)
    if kind == "npy":
        return of_array(data)
    if kind == "frame":
        from ramet_guest.values.frames import rebuilt

        return rebuilt(decode(data))
    encoding, _, library = kind.partition(":")
    if encoding == "records":
        return of_records(library, json_reader.read(str(data, "utf-8")), plain)
    if encoding == "arrow":
        return of_arrow(library, data)
    raise ValueError(f"an attachment of the kind {kind!r}, which is unknown here")


# Tables become objects of the library they came from if it is installed, else of pandas, else a list of rows.


def of_records(library: str, table: dict[str, list[Any]], plain: bool) -> Any:
    columns, rows = table["columns"], table["data"]
    if plain:
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def pandas() -> Any:
        return library_called("pandas").DataFrame(rows, columns=columns)

    def polars() -> Any:
        return library_called("polars").DataFrame(rows, schema=columns, orient="row", infer_schema_length=None)

    def arrow() -> Any:
        return library_called("pyarrow").table(
            [[row[place] for row in rows] for place in range(len(columns))], names=columns
        )

    own = {"polars": polars, "table": arrow}.get(library, pandas)
    return first_possible(own, pandas, lambda: of_records(library, table, plain=True))


def of_arrow(library: str, data: memoryview) -> Any:
    table: Any = library_called("pyarrow.ipc").open_stream(data).read_all()

    def polars() -> Any:
        return library_called("polars").from_arrow(table)

    own = {"pandas": table.to_pandas, "polars": polars}.get(library, lambda: table)
    return first_possible(own, table.to_pandas, table.to_pylist)


def library_called(name: str) -> Any:
    from importlib import import_module

    return import_module(name)


def first_possible(*ways: Callable[[], Any]) -> Any:
    for way in ways[:-1]:
        try:
            return way()
        except ImportError:
            continue
    return ways[-1]()


def of_array(data: memoryview) -> Any:
    """Reads an array that numpy.save wrote, and refuses pickles."""
    return library_called("numpy.lib.format").read_array(Reader(data), allow_pickle=False)


class Reader:
    """A file over bytes in memory. BytesIO would copy all of them."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._place = 0

    def read(self, count: int) -> bytes:
        start, self._place = self._place, self._place + count
        return bytes(self._data[start : self._place])
