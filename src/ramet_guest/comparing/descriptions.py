"""A value in a few words, and its size: what a person wants to see of a name that differs.

Time and memory are limited for types whose values can be huge. Any other value is asked for its `repr`, which is user
code.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ramet_guest.comparing.pieces import name_of, without_addresses

CHARACTERS = 200
_ITEMS = 6
_DEEP = 3
_LONG_INTEGER_BITS = 2000
_SMALL_ARRAY = 12
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def short(value: Any) -> str:
    """Returns one line of at most CHARACTERS."""
    text = " ".join(without_addresses(text_of(value, _DEEP)).split())
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 3] + "..."


def text_of(value: Any, deep: int) -> str:
    """Describes a value. `deep` limits how many levels of containers are shown."""
    kind = type(value)
    if kind in (str, bytes, bytearray):
        return repr(value[:CHARACTERS]) + ("..." if len(value) > CHARACTERS else "")
    if kind is int and value.bit_length() > _LONG_INTEGER_BITS:
        return f"<int of {value.bit_length()} bits>"
    if kind in _BRACKETS:
        return container(value, kind, deep)
    return of_library(value, kind) or of_code(value, kind) or of_object(value, kind, deep)


def container(value: Any, kind: type, deep: int) -> str:
    first, last = _BRACKETS[kind][0], _BRACKETS[kind][1]
    if not value:
        return repr(value)
    if deep == 0:
        return f"{first}...{last}"
    if kind is dict:
        parts = [f"{text_of(key, deep - 1)}: {text_of(inside, deep - 1)}" for key, inside in some(value.items())]
    else:
        parts = [text_of(inside, deep - 1) for inside in some(value)]
    if len(value) > _ITEMS:
        parts.append(f"... {len(value)} items")
    return first + ", ".join(parts) + ("," if kind is tuple and len(value) == 1 else "") + last


def some(values: Iterable[Any]) -> Iterator[Any]:
    return islice(values, _ITEMS)


def of_library(value: Any, kind: type) -> str | None:
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy is not None and issubclass(kind, getattr(numpy, "ndarray", ())):
        if value.size <= _SMALL_ARRAY and not value.dtype.hasobject:
            return repr(value)
        return f"shape {value.shape}, dtype {value.dtype}"
    if pandas is not None and hasattr(pandas, "Series"):
        if issubclass(kind, pandas.DataFrame):
            rows, columns = value.shape
            return f"{rows} rows x {columns} columns: {', '.join(map(str, some(value.columns)))}"
        if issubclass(kind, pandas.Series):
            return f"{len(value)} values, dtype {value.dtype}, name {value.name!r}"
    return None


def of_code(value: Any, kind: type) -> str | None:
    if kind is types.FunctionType:
        code = value.__code__
        return f"{value.__name__}({', '.join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])})"
    if issubclass(kind, types.ModuleType):
        return f"<module {value.__name__!r}>"
    return None


def of_object(value: Any, kind: type, deep: int) -> str:
    own: Any = kind.__repr__
    if own is object.__repr__:
        return f"<{name_of(kind)} object>"
    fields = getattr(kind, "__dataclass_fields__", None)
    if type(fields) is dict and hasattr(own, "__wrapped__"):
        # The `__repr__` that dataclass makes writes out everything, however large.
        if deep == 0:
            return f"{kind.__qualname__}(...)"
        parts = [f"{name}={text_of(getattr(value, name, None), deep - 1)}" for name in some(fields)]
        return f"{kind.__qualname__}({', '.join(parts)}{', ...' if len(fields) > _ITEMS else ''})"
    if issubclass(kind, (list, tuple, dict, set, frozenset)) and len(value) > 10 * _ITEMS:
        return f"{len(value)} items"
    return str(repr(value))[: 10 * CHARACTERS]


def size_of(value: Any) -> int:
    """Returns the size in bytes: the data of an array or a frame, or what Python reports for any other object alone."""
    kind = type(value)
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy is not None and issubclass(kind, getattr(numpy, "ndarray", ())):
        return int(value.nbytes)
    if pandas is not None and hasattr(pandas, "Series"):
        if issubclass(kind, pandas.DataFrame):
            return int(value.memory_usage(index=True, deep=False).sum())
        if issubclass(kind, (pandas.Series, pandas.Index)):
            return int(value.memory_usage(deep=False))
    return int(sys.getsizeof(value))
