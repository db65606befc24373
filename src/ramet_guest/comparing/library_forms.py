"""Takes arrays and frames apart for a digest of their contents. Imports no library for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ramet_guest.comparing.pieces import Piece, ValueForm, of_buffer, sequence, tagged


def by_library(value: Any, kind: type) -> ValueForm | None:
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, getattr(numpy, "ndarray", ())):
        return of_array(value, kind, numpy)
    pandas = sys.modules.get("pandas")
    if pandas is not None and hasattr(pandas, "Series"):
        if issubclass(kind, pandas.DataFrame):
            return ValueForm(tagged(kind), of_frame(value))
        # MultiIndex and RangeIndex are left out: they hold less than the arrays that would have to be built from them.
        if issubclass(kind, (pandas.Series, pandas.Index)) and not issubclass(
            kind, (pandas.MultiIndex, pandas.RangeIndex)
        ):
            labels = () if issubclass(kind, pandas.Index) else (value.index, value.attrs)
            return ValueForm(tagged(kind, value.dtype), iter((value.name, *labels, plain_array(value.array))))
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, getattr(torch, "Tensor", ())):
        return ValueForm(tagged(kind, value.dtype, value.requires_grad), iter((value.detach().cpu().numpy(),)))
    return None


def of_array(value: Any, kind: type, numpy: Any) -> ValueForm:
    plain = value.view(numpy.ndarray)
    tag = tagged(kind, value.dtype.str, value.dtype, value.shape)
    more = getattr(value, "__dict__", None) or None  # a mask, a name
    if value.dtype.hasobject:
        return ValueForm(tag, object_items(plain, more))
    return ValueForm(tag, array_pieces(plain, more, numpy))


def object_items(plain: Any, more: Any) -> Iterator[Any]:
    yield more
    # An item of a structured array is an array again, which would be taken apart for ever; as a tuple it is not.
    yield from sequence(iter(plain.flat) if plain.dtype.names is None else (record.item() for record in plain.flat))


def array_pieces(plain: Any, more: Any, numpy: Any) -> Iterator[Any]:
    yield more
    if plain.flags.c_contiguous and plain.dtype.itemsize:
        yield from of_buffer(plain.reshape(-1).view(numpy.uint8))
    else:
        flags = ["external_loop", "buffered", "zerosize_ok"]
        for part in numpy.nditer(plain, flags=flags, order="C", buffersize=1 << 18):
            yield Piece(part.tobytes())


def of_frame(value: Any) -> Iterator[Any]:
    """Yields column by column: how pandas groups columns internally changes by mere reading."""
    yield value.columns
    yield value.index
    yield value.attrs
    for number in range(value.shape[1]):
        yield plain_array(value.iloc[:, number].array)


def plain_array(array: Any) -> Any:
    """Unwraps numpy's array from the pandas wrapper, which would be one more copy to pickle."""
    arrow = getattr(array, "_pa_array", None)
    if arrow is not None:
        return str(array.dtype), arrow.combine_chunks()  # its division into chunks is not part of the value
    inside = getattr(array, "_ndarray", None)
    return (str(array.dtype), inside) if inside is not None and not hasattr(array, "categories") else array
