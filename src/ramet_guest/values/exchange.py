"""Gets and sets values by name for the owner, between two cells.

A value travels in the encoding of tool values (`ramet.protocol.tools.values`), with more stand-ins:

    {"$ramet": n}                                   attachment n: bytes, a long text, an array
    {"$ramet": "dict", "items": [[key, V], ...]}    a dict with keys that JSON does not have
    {"$ramet": "frame" | "series", ...}             from pandas, see `tables`

It is encoded as a whole before anything is sent, then sent in parts as the engine asks for them. For types that Python
knows, no code of a subclass runs; any user code that does run goes through the gate.
"""

from __future__ import annotations

import json
import os
from collections import deque
from datetime import date, time
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ramet_guest import channel as frames
from ramet_guest import wire
from ramet_guest.comparing.pieces import name_of
from ramet_guest.values import tables
from ramet_guest.values.tables import ValueRefused

if TYPE_CHECKING:
    from ramet_guest.repl import Repl

PART_BYTES = 1 << 20
# The engine and the client accept no more.
DATA_BYTES_AT_MOST = wire.VALUE_DATA_BYTES_AT_MOST
JSON_BYTES_AT_MOST = wire.VALUE_JSON_BYTES_AT_MOST
MESSAGE_CHARACTERS = 1000
LEVELS_AT_MOST = 100
LONG_TEXT_CHARACTERS = 10_000
MARK = wire.VALUE_MARK

_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_NUMBERS = frozenset((int, float, bool, type(None)))
_KEYS = (str, int, float, bool, type(None))


class Values:
    """Holds the parts of a value that are still to be sent to the owner."""

    def __init__(self, repl: Repl) -> None:
        self._repl = repl
        self._left: deque[memoryview] = deque()
        self._aside: dict[str, Any] = {}  # values from another sandbox, until the owner says that they are to be kept

    def answer(self, frame: frames.GuestFrame) -> None:
        """Answers one frame: get, next part, set or drop."""
        if frame.kind == wire.VALUE_DROP:
            self._left.clear()
            aside, self._aside = self._aside, {}
            # Through the gate: this may run finalizers of the user.
            self._repl.gate.run(aside.clear)
        elif frame.kind == wire.VALUE_NEXT:
            self._send_part()
        elif frame.kind == wire.VALUE_GET:
            self._run(self._get, frame.header["name"])
        elif frame.kind == wire.VALUES_PACK:
            self._run(self._pack, "cannot take", frame.header["names"])
        elif frame.kind == wire.VALUES_UNPACK:
            self._run(self._unpack, "the values", frame.header["path"], frame.header["names"])
        elif frame.kind == wire.VALUES_KEEP:
            self._run(self._keep, "the values")
        else:
            self._run(self._set, frame.header["name"], frame.header["path"], frame.blob)

    def _run(self, step: Any, name: str, *more: Any) -> None:
        """Runs a step through the gate: libraries may call user code, and may take long."""
        self._left.clear()
        gate = self._repl.gate
        # As `gate.begin`, but leaves the user's SIGINT handler aside: an interrupt here must raise.
        gate.busy, gate.pending, gate.fired = True, None, False
        try:
            error = gate.run(step, name, *more)
        finally:
            gate.calm()
            gate.end()
        self._repl.leave_if_forked(0)
        if error is None:
            self._send_part()
            return
        self._left.clear()
        kind, message = explained(error, name)
        header = {"more": False, "error": {"kind": kind, "message": message[:MESSAGE_CHARACTERS]}}
        self._repl.channel.send(wire.VALUE, frames.encode_header(header))

    def _send_part(self) -> None:
        """Sends the next part. The engine asks for each one, so that a large value does not fill its memory."""
        pieces: list[memoryview] = []
        missing = PART_BYTES
        while self._left and missing:
            piece = self._left.popleft()
            if len(piece) > missing:
                self._left.appendleft(piece[missing:])
                piece = piece[:missing]
            pieces.append(piece)
            missing -= len(piece)
        header = {"more": bool(self._left), "error": None}
        self._repl.channel.send(wire.VALUE, frames.encode_header(header), b"".join(pieces))

    def _get(self, name: str) -> None:
        namespace = self._repl.namespace
        if name not in namespace:
            raise ValueRefused("unknown", "is not defined in the sandbox")
        self._left.extend(memoryview(part) for part in encode(namespace[name]) if len(part))

    def _pack(self, _: str, names: list[str]) -> None:
        from ramet_guest.values import travelling  # most sandboxes do without

        self._left.extend(memoryview(part) for part in travelling.pack(self._repl.namespace, names) if len(part))

    def _unpack(self, _: str, path: str, names: list[str]) -> None:
        from ramet_guest.values import travelling

        self._aside = travelling.unpack(taken(path), names)

    def _keep(self, _: str) -> None:
        values, self._aside = self._aside, {}
        self._repl.namespace.update(values)

    def _set(self, name: str, path: str | None, blob: bytes) -> None:
        from ramet_guest.tools import returned_values  # most sandboxes do without

        data: bytes | bytearray = blob if path is None else taken(path)
        try:
            self._repl.namespace[name] = returned_values.decode(data)
        except ImportError as error:
            raise ValueRefused("format", f"needs a library that the sandbox has not: {error}") from None


def taken(path: str) -> bytes:
    """Reads a file that the owner wrote for this value, and removes it."""
    try:
        with open(path, "rb") as file:
            os.unlink(path)
            data = file.read(DATA_BYTES_AT_MOST + 1)
    except OSError as error:
        raise ValueRefused("failed", f"could not be read from {path}: {error}") from None
    if len(data) > DATA_BYTES_AT_MOST:
        raise ValueRefused("large", f"has more than {DATA_BYTES_AT_MOST} bytes")
    return data


def explained(error: BaseException, name: str) -> tuple[str, str]:
    """Returns the kind and the message for an error that a value caused."""
    if isinstance(error, ValueRefused):
        return error.kind, error.told(name)
    if isinstance(error, RecursionError):
        return "unsupported", f"{name} is nested too deeply"
    try:
        text = str(error)
    except BaseException:
        text = ""
    return "failed", f"{name} could not be handled: {type(error).__name__}: {text}"


def encode(value: Any) -> list[bytes | memoryview]:
    """Encodes a value: length of its JSON, the JSON, and its attachments as views, not copies. Raises ValueRefused."""
    writer = Writer()
    plain = writer.plain(value)
    text = _dumps({"value": plain, "attachments": writer.described()}).encode("ascii")
    if len(text) > JSON_BYTES_AT_MOST:
        raise too_long()
    buffers = (buffer for _, data in writer.attachments for buffer in data)
    return [len(text).to_bytes(4, "little") + text, *buffers]


def too_long() -> ValueRefused:
    return ValueRefused("large", f"has more than {JSON_BYTES_AT_MOST} bytes as JSON")


class Writer:
    """Turns one value into JSON and attachments. Stops as soon as the value is known to be too large."""

    def __init__(self) -> None:
        self.attachments: list[tuple[str, tuple[bytes | memoryview, ...]]] = []
        self._above: list[int] = []
        self._json_bytes = 0
        self._attached_bytes = 0

    def described(self) -> list[list[Any]]:
        return [[kind, sum(map(len, data))] for kind, data in self.attachments]

    def plain(self, value: Any) -> Any:
        """Returns the value as JSON types.

        Calls methods of the base types (`str.__str__`), so that no code of a user's subclass runs.
        """
        if value is None or value is True or value is False:
            return self.counted(value, 4)
        if isinstance(value, str):
            text = str.__str__(value)
            if len(text) > LONG_TEXT_CHARACTERS:
                return self.attach("text", text.encode("utf-8", "surrogatepass"))
            return self.counted(text, len(text) + 2)
        if isinstance(value, int):
            return self.counted(int.__index__(value), value.bit_length() // 3 + 1)
        if isinstance(value, float):
            return self.counted(float.__float__(value), 8)
        if isinstance(value, dict):
            return self.within(value, self.mapping)
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return self.within(value, lambda items, kind=kind: self.sequence(kind.__iter__(items)))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.attach("bytes", bytes(value))
        return self.other(value)

    def counted(self, value: Any, size: int) -> Any:
        self._json_bytes += size + 1
        if self._json_bytes > JSON_BYTES_AT_MOST:
            raise too_long()
        return value

    def within(self, container: Any, write: Any) -> Any:
        if id(container) in self._above:
            raise ValueRefused("unsupported", "contains itself")
        if len(self._above) >= LEVELS_AT_MOST:
            raise ValueRefused("unsupported", f"is nested more than {LEVELS_AT_MOST} levels deep")
        self._above.append(id(container))
        self.counted(None, 2)
        written = write(container)
        self._above.pop()
        return written

    def sequence(self, values: Any) -> list[Any]:
        plain = list(values)
        if _NUMBERS.issuperset(map(type, plain)):
            self.counted(None, 2 * len(plain))  # a lower bound, in one step for a million numbers
            return plain
        written: list[Any] = []
        for value in plain:
            written.append(self.item(len(written), value))
        return written

    def mapping(self, values: dict[Any, Any]) -> Any:
        items = list(dict.items(values))
        if all(type(key) is str for key, _ in items) and MARK not in values:
            return {self.counted(key, len(key) + 3): self.item(key, value) for key, value in items}
        for key, _ in items:
            if not isinstance(key, _KEYS):
                raise ValueRefused("unsupported", f"has a key of the type {name_of(type(key))}")
        return {MARK: "dict", "items": [[self.plain(key), self.item(key, value)] for key, value in items]}

    def item(self, key: Any, value: Any) -> Any:
        try:
            return self.plain(value)
        except ValueRefused as refused:
            # Where a value became too large does not matter.
            raise (refused if refused.kind == "large" else refused.inside(key)) from None

    def other(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, Enum):
            return self.plain(value._value_)
        if isinstance(value, (date, time)):  # datetime is a subclass of date
            return self.counted(kind.isoformat(value), 26)
        if isinstance(value, (UUID, PurePath)):
            return self.plain(str(value))
        fields = getattr(kind, "__dataclass_fields__", None)
        if isinstance(fields, dict):
            return self.within(value, lambda one: self.mapping({name: getattr(one, name) for name in fields}))
        written = tables.of_library(self, value)
        if written is not None:
            return written[0]
        raise ValueRefused("unsupported", f"is of the type {name_of(kind)}, which cannot be taken out of a sandbox")

    def attach(self, kind: str, *data: bytes | memoryview) -> Any:
        size = sum(map(len, data))
        self.room(size)
        self._attached_bytes += size
        self.attachments.append((kind, data))
        self.counted(None, 20)
        return {MARK: len(self.attachments) - 1}

    def room(self, count: int) -> None:
        """Raises `ValueRefused` if this many more bytes would exceed the limit."""
        if self._attached_bytes + count > DATA_BYTES_AT_MOST:
            raise ValueRefused("large", f"has more than {DATA_BYTES_AT_MOST} bytes")
