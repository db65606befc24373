"""The parts of a digest: bytes, plain values encoded together, and tags that tell types apart."""

from __future__ import annotations

import marshal
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

# This version of marshal's format is canonical: no references, no interning, sets sorted.
_MARSHAL_VERSION = 2
_NUMBERS = frozenset((int, float, complex, bool, type(None)))
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
_FEW_ITEMS = 16
_SMALL_TEXT = 1 << 10
_SMALL = 1 << 16
ITEMS_AT_ONCE = 2048
BYTES_AT_ONCE = 4 << 20
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Piece:
    """Bytes that enter the digest unchanged."""

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = data


class ValueForm(NamedTuple):
    """A value taken apart: a tag, and an iterator of child values and pieces."""

    tag: bytes
    children: Iterator[Any]
    unordered: bool = False


def atom(value: Any) -> bytes | None:
    """Encodes a small value that contains nothing which could be shared or refer back; returns None for any other."""
    kind = type(value)
    if kind in _NUMBERS:
        pass
    elif kind in (str, bytes):
        if len(value) > _SMALL:
            return None
    elif kind in _CONTAINERS:
        if len(value) > _FEW_ITEMS or not are_plain(value) or (kind is dict and not are_plain(value.values())):
            return None
    elif kind is not type(...):
        return None
    data = marshal.dumps(value, _MARSHAL_VERSION)
    return b"a%d;" % len(data) + data


def are_plain(values: Iterable[Any]) -> bool:
    for value in values:
        kind = type(value)
        if kind not in _NUMBERS and (kind is not str or len(value) > _SMALL_TEXT):
            return False
    return True


def tagged(kind: type, *more: object) -> bytes:
    return ("\0".join((name_of(kind), *map(str, more))) + "\0").encode("utf-8", "backslashreplace")


def name_of(kind: Any) -> str:
    """Returns the name of a class or function, with its module unless that is `builtins` or `__main__`."""
    module = getattr(kind, "__module__", None)
    return str(kind.__qualname__) if module in ("builtins", "__main__", None) else f"{module}.{kind.__qualname__}"


def without_addresses(text: str) -> str:
    """Removes memory addresses, which differ between processes and are not part of a value."""
    return _ADDRESS.sub("", text)


def sequence(values: Iterator[Any]) -> Iterator[Any]:
    """Yields items, runs of plain ones as one piece: ten million numbers would be too many single steps."""
    while chunk := list(islice(values, ITEMS_AT_ONCE)):
        kinds = set(map(type, chunk))
        if kinds <= _NUMBERS or (kinds == {str} and sum(map(len, chunk)) <= BYTES_AT_ONCE):
            data = marshal.dumps(chunk, _MARSHAL_VERSION)
            yield Piece(b"m" + len(data).to_bytes(8, "little") + data)
        else:
            yield from chunk


def dictionary(values: dict[Any, Any]) -> Iterator[Any]:
    yield from sequence(iter(values.keys()))
    yield from sequence(iter(values.values()))


def of_text(value: str) -> Iterator[Any]:
    for start in range(0, len(value), 1 << 20):
        yield Piece(value[start : start + (1 << 20)].encode("utf-8", "surrogatepass"))


def of_buffer(value: Any) -> Iterator[Any]:
    view = memoryview(value).cast("B")
    for start in range(0, len(view), BYTES_AT_ONCE):
        yield Piece(view[start : start + BYTES_AT_ONCE])
