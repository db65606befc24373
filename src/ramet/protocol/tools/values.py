"""Encodes the value that a tool returned for the code that called it.

    u32 LE       length            the rest
    | length J | {"value": V, "attachments": [[kind, length], ...]} | attachment 0 | attachment 1 ...

V is JSON, except that ``{"$ramet": n}`` stands for attachment n, and that a dict which has such a key itself is written
as ``{"$ramet": "dict", "items": [[key, V], ...]}``. Bytes stay bytes, and tables and arrays travel in formats of their
own (``tables``). A value without a counterpart inside a sandbox is refused, with the place where it was found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time
from enum import Enum
from pathlib import PurePath
from struct import Struct
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from ramet.protocol.tools import tables
from ramet.protocol.tools.socket_frames import VALUE_BYTES_AT_MOST
from ramet.protocol.tools.tables import Attachment, PlainCells
from ramet_guest.wire import VALUE_MARK

Container = TypeVar("Container")

MARK = VALUE_MARK
FRAME = "frame"  # a format for frames that only guests of this version read; tools use Arrow, which others know
# The JSON parser in the sandbox has to follow, on a stack that may already be deep.
_LEVELS_AT_MOST = 400
_LENGTH = Struct("<I")
_PLAIN = frozenset((str, int, float, bool, type(None)))
_NAMES = frozenset((str,))
_SEQUENCES = (list, tuple, set, frozenset)
_BYTES = (bytes, bytearray, memoryview)

_in_utf8 = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode
_in_ascii = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class CannotCross(Exception):
    """Raised for a value that cannot be given to code in a sandbox."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self._problem = problem
        self._steps: list[str] = []

    def __str__(self) -> str:
        return f"the tool returned something that cannot cross: {self.told('result')}"

    def told(self, name: str) -> str:
        """Return the message, with the path to the part that is at fault. ``name`` stands for the value."""
        return f"{name}{''.join(reversed(self._steps))} {self._problem}"

    def inside(self, key: object) -> CannotCross:
        """Add the next outer step to the path."""
        self._steps.append(f"[{key!r:.80}]")
        return self


class EncodedValue(NamedTuple):
    """A value in separate buffers, so that nothing long is copied only to be joined."""

    buffers: tuple[bytes | memoryview, ...]
    size_bytes: int

    def whole(self) -> bytes:
        return b"".join(self.buffers)

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """Yield all of it in pieces of this size."""
        held: list[bytes | memoryview] = []
        missing = piece_bytes
        for buffer in self.buffers:
            view = memoryview(buffer)
            while len(view) >= missing:
                yield b"".join((*held, view[:missing]))
                view = view[missing:]
                held, missing = [], piece_bytes
            if view:
                held.append(view)
                missing -= len(view)
        if held:
            yield b"".join(held)


def encode_value(value: object, accepts: Collection[str] = (), any_keys: bool = False) -> EncodedValue:
    """Encode a value for a caller that can read these formats. Raise CannotCross.

    With ``any_keys`` the keys of a dict may also be numbers, booleans and None.
    """
    writer = _Writer(accepts, any_keys)
    try:
        plain = writer.plain(value)
        text = _text({"value": plain, "attachments": writer.described()})
    except RecursionError:
        raise CannotCross("is nested too deeply") from None
    except ValueError as error:
        raise CannotCross(f"is not possible in JSON: {error}") from None  # such as a number of 5000 digits
    buffers = (_LENGTH.pack(len(text)), text, *(one.data for one in writer.attachments))
    size_bytes = sum(map(len, buffers))
    if size_bytes > VALUE_BYTES_AT_MOST:
        raise CannotCross(f"has {size_bytes} bytes, but at most {VALUE_BYTES_AT_MOST} are allowed")
    return EncodedValue(buffers, size_bytes)


def _text(value: object) -> bytes:
    try:
        return _in_utf8(value).encode("utf-8")
    except UnicodeEncodeError:
        return _in_ascii(value).encode("ascii")  # half a surrogate pair, which JSON can only write as an escape


class _Writer:
    """Turns one value into JSON and attachments."""

    def __init__(self, accepts: Collection[str], any_keys: bool = False) -> None:
        self._accepts = accepts
        self._any_keys = any_keys
        self._above: set[int] = set()  # ids of the containers around the current one
        self.attachments: list[Attachment] = []

    def described(self) -> list[list[object]]:
        return [[one.kind, len(one.data)] for one in self.attachments]

    def plain(self, value: object) -> object:
        """Return the value as JSON types.

        Most values need no change: they are checked once and returned as they are.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, dict):
            if (
                kind is dict
                and _PLAIN.issuperset(map(type, value.values()))
                and _NAMES.issuperset(map(type, value))
                and MARK not in value
            ):
                return value
            return self._within(value, self._mapping)
        if isinstance(value, _SEQUENCES):
            return self._within(value, self._sequence)
        if isinstance(value, _BYTES):
            # Copy what can be changed: its owner may change it while it is being sent.
            return self._attach(Attachment("bytes", value if isinstance(value, bytes) else bytes(value)))
        return self._other(value)

    def _within(self, container: Container, write: Callable[[Container], object]) -> object:
        """Write a container. Raise CannotCross if it contains itself or is nested too deeply."""
        if id(container) in self._above:
            raise CannotCross("contains itself")
        if len(self._above) >= _LEVELS_AT_MOST:
            raise CannotCross("is nested too deeply")
        self._above.add(id(container))
        try:
            return write(container)
        finally:
            self._above.discard(id(container))

    def _sequence(self, values: Collection[object]) -> object:
        # One pass in C for the usual list, in which no item needs conversion.
        if _PLAIN.issuperset(map(type, values)):
            return values if isinstance(values, (list, tuple)) else list(values)
        written: list[object] = []
        try:
            for value in values:
                written.append(self.plain(value))
        except CannotCross as error:
            raise error.inside(len(written)) from None
        return written

    def _mapping(self, values: Mapping[Any, object]) -> object:
        other_keys = [key for key in values if not isinstance(key, str)]
        for key in other_keys:
            if not self._any_keys or type(key) not in _PLAIN:
                raise CannotCross(f"has the key {key!r:.80}, which is {_a(key)} and not a str")
        if MARK in values or other_keys:
            return {MARK: "dict", "items": [[key, self._item(key, value)] for key, value in values.items()]}
        return {key: self._item(key, value) for key, value in values.items()}

    def _fields(self, value: Any) -> object:
        return self._mapping({field.name: getattr(value, field.name) for field in fields(value)})

    def _item(self, key: object, value: object) -> object:
        try:
            return self.plain(value)
        except CannotCross as error:
            raise error.inside(key) from None

    def _other(self, value: object) -> object:
        if isinstance(value, Enum):
            return self.plain(value.value)
        if isinstance(value, (str, int, float)):
            return value  # an instance of a subclass
        if isinstance(value, (date, time)):  # datetime is a subclass of date
            return value.isoformat()
        if isinstance(value, (UUID, PurePath)):
            return str(value)
        if is_dataclass(value) and not isinstance(value, type):
            return self._within(value, self._fields)
        dump = getattr(type(value), "model_dump", None)
        if dump is not None and hasattr(type(value), "model_fields"):
            return self.plain(dump(value, mode="json"))
        if FRAME in self._accepts:
            described = self._described(value)
            if described is not None:
                return self._attach(Attachment("frame", described))
        table = tables.attachment(value, self._accepts, self._cells)
        if isinstance(table, Attachment):
            return self._attach(table)
        if isinstance(table, PlainCells):
            return self.plain(table.values)
        raise CannotCross(f"is {_a(value)}")

    def _described(self, value: object) -> bytes | None:
        """Encode a pandas frame or series as a value within the value."""
        # Imported on demand: tools do not need it.
        from ramet.protocol.values.frame_columns import NotDescribed, described

        try:
            told = described(value)
        except NotDescribed as error:
            raise CannotCross(str(error)) from None
        return None if told is None else encode_value(told, self._accepts, any_keys=True).whole()

    def _cells(self, rows: object) -> bytes:
        """Return the JSON of a table's cells, which cannot have attachments."""
        writer = _Writer(())
        plain = writer.plain(rows)
        if writer.attachments:
            raise CannotCross("is a table with bytes in it, which needs pyarrow on both sides")
        return _text(plain)

    def _attach(self, attachment: Attachment) -> object:
        self.attachments.append(attachment)
        return {MARK: len(self.attachments) - 1}


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"
