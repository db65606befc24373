"""The frames between engine and guest: their kinds, and the engine's distrustful reading of what a guest sends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.frames import Frame, encode, encode_text
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.results import CellError
from ramet_guest import wire

# What each kind means is said in ``wire``. From the engine to the guest:
CONFIGURE = wire.CONFIGURE
RUN = wire.RUN
THAWED = wire.THAWED
ASK_LOOPS = wire.ASK_LOOPS
ASK_NAMES = wire.ASK_NAMES
WAKE = wire.WAKE
TOOLS = wire.TOOLS
INTERRUPT = wire.INTERRUPT
VALUE_GET = wire.VALUE_GET
VALUE_NEXT = wire.VALUE_NEXT
VALUE_SET = wire.VALUE_SET
VALUE_DROP = wire.VALUE_DROP
VALUES_PACK = wire.VALUES_PACK
VALUES_UNPACK = wire.VALUES_UNPACK
VALUES_KEEP = wire.VALUES_KEEP
TAKEN = wire.TAKEN
# From the guest to the engine:
READY = wire.READY
CONFIGURED = wire.CONFIGURED
RESULT = wire.RESULT
DONE = wire.DONE
LOOPS = wire.LOOPS
NAMES = wire.NAMES
VALUE = wire.VALUE

HARD_INTERRUPT_SIGNAL = wire.HARD_INTERRUPT_SIGNAL

_FORMS = ("s", "b", "j")
_WHATS = ("value", "display", "update", "clear")
_MIMES_AT_MOST = 64
_MIME_CHARACTERS_AT_MOST = 255
NAMES_AT_MOST = wire.NAMES_AT_MOST
_NAMES_BYTES_AT_MOST = 8 * 1024 * 1024
_NAME_LINE_BYTES_AT_MOST = 8 * 1024
_DISPLAY_ID_CHARACTERS_AT_MOST = 200
_NAME_CHARACTERS_AT_MOST = 200  # of a name, of its type, of its short value
VALUE_REFUSALS = ("unknown", "unsupported", "large", "format", "failed")
_REFUSAL_CHARACTERS_AT_MOST = 1000
_NUMBER_AT_MOST = 2**53
_FINGERPRINT = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Configured:
    """The guest applied CONFIGURE, or says why it could not."""

    error: str | None


@dataclass(frozen=True, slots=True)
class Rich:
    """A rich result as it travels: what it is, and one blob with all its forms."""

    cell_id: int
    what: str
    display_id: str | None
    mimes: tuple[tuple[str, str, int], ...]  # name, form ("s" text, "b" bytes, "j" JSON), length in bytes
    blob: bytes
    header_bytes: int = 0  # of the frame it came in
    number: int = 0  # the guest waits until it is told that this one was taken; 0: it does not
    wait: bool = False  # of a clear: not before something new is shown


class Done(NamedTuple):
    """The cell has ended and has written its last byte."""

    cell_id: int
    exit_code: int
    error: CellError | None
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Loops:
    """Whether a thread of the guest runs an asyncio loop."""

    running: bool


class Named(NamedTuple):
    """What a guest says of one name. Without a fingerprint there was no time for one."""

    type: str
    value: str
    size_bytes: int
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class GuestNames:
    """The names of a guest's namespace; ``omitted`` ones were too many to be sent."""

    names: Mapping[str, Named]
    omitted: int


@dataclass(frozen=True, slots=True)
class NamesTold:
    """The same as it came: one line of JSON for each name, to be decoded a few at a time by ``read_name``."""

    lines: tuple[bytes, ...]
    omitted: int


class ValueTold(NamedTuple):
    """A part of a value, or why there is none: a kind and a message."""

    data: bytes
    more: bool
    refusal: tuple[str, str] | None


Message = Configured | Rich | Done | Loops | NamesTold | ValueTold


def thawed(reseed: bool, stir: bool) -> bytes:
    return encode(THAWED, {"reseed": reseed, "stir": stir})


def wake() -> bytes:
    return encode(WAKE, {})


def ask_loops() -> bytes:
    return encode(ASK_LOOPS, {})


def ask_names(seconds: float) -> bytes:
    """Answered after about that many seconds at most; names not looked at by then have no fingerprint."""
    return encode(ASK_NAMES, {"seconds": seconds})


def configure(
    environment: Mapping[str, str] | None,
    cwd: str | None,
    forget: Mapping[str, str] | None = None,
    commands: str | None = None,
) -> bytes:
    """``forget``: variables that are removed if they still have these values. ``commands``: a folder, first in PATH."""
    header: dict[str, object] = {"env": environment, "cwd": cwd}
    if forget:
        header["forget"] = forget
    if commands is not None:
        header["commands"] = commands
    return encode(CONFIGURE, header)


def run(cell_id: int, language: str, code: bytes, live: bool = False) -> bytes:
    """``language`` is one of those that ``checks`` knows: nothing that JSON would have to escape.

    ``live``: somebody watches, and should see text and displays in the order in which they were made.
    """
    more = ',"live":true' if live else ""
    return encode_text(RUN, f'{{"id":{cell_id},"language":"{language}"{more}}}', code)


def taken(number: int) -> bytes:
    return encode_text(TAKEN, f'{{"number":{number}}}')


def interrupt(cell_id: int) -> bytes:
    return encode(INTERRUPT, {"id": cell_id})


def get_value(name: str) -> bytes:
    return encode(VALUE_GET, {"name": name})


def next_of_value() -> bytes:
    return encode(VALUE_NEXT, {})


def drop_value() -> bytes:
    return encode(VALUE_DROP, {})


def set_value(name: str, path: str | None, data: bytes) -> bytes:
    return encode(VALUE_SET, {"name": name, "path": path}, data)


def pack_values(names: Sequence[str]) -> bytes:
    """Have values sent for another sandbox, as a pickle that only a sandbox may read."""
    return encode(VALUES_PACK, {"names": list(names)})


def unpack_values(names: Sequence[str], path: str) -> bytes:
    """Have such values made from a file of the sandbox, and kept aside until ``keep_values`` or ``drop_value``."""
    return encode(VALUES_UNPACK, {"names": list(names), "path": path})


def keep_values() -> bytes:
    return encode(VALUES_KEEP, {})


def tools(socket_name: str, encoded: bytes, anew: bool = False) -> bytes:
    """The tools of the cells to come, and the abstract name of the socket that calls are made at.

    ``anew``: their owner has just given them, so their names lead to them again.
    """
    return encode(TOOLS, {"socket": socket_name, "anew": anew}, encoded)


def read(frame: Frame) -> Message:
    """What a running guest said. READY is for the boot of a template only, and so refused here like an unknown kind."""
    header = frame.header
    if frame.kind == DONE:
        return _done(header, frame.blob)
    if frame.kind == RESULT:
        return Rich(
            cell_id=fields.whole(header, "id"),
            what=_one_of(_WHATS, fields.text(header, "what")),
            display_id=_display_id(fields.optional_text(header, "display_id")),
            mimes=read_mimes(fields.array(header, "mimes"), len(frame.blob)),
            blob=frame.blob,
            header_bytes=frame.header_bytes,
            number=_number(header.get("number", 0)),
            wait=header.get("wait") is True,
        )
    if frame.kind == CONFIGURED:
        return Configured(fields.optional_text(header, "error"))
    if frame.kind == LOOPS:
        return Loops(fields.flag(header, "running"))
    if frame.kind == NAMES:
        return NamesTold(_name_lines(frame.blob), fields.natural(header, "omitted"))
    if frame.kind == VALUE:
        return _value(header, frame.blob)
    raise ProtocolError(f"frame of unknown kind {frame.kind}")


def read_mimes(values: list[object], blob_bytes: int) -> tuple[tuple[str, str, int], ...]:
    """The forms of a rich result; their lengths add up to the blob exactly."""
    if len(values) > _MIMES_AT_MOST:
        raise ProtocolError(f"a rich result with {len(values)} forms, at most {_MIMES_AT_MOST} allowed")
    mimes = tuple(_mime(value) for value in values)
    if sum(length for _, _, length in mimes) != blob_bytes:
        raise ProtocolError("the forms of a rich result do not add up to its blob")
    return mimes


def _done(header: Mapping[str, object], blob: bytes) -> Done:
    cell_id, exit_code = fields.whole(header, "id"), fields.whole(header, "exit_code")
    if not 0 <= exit_code <= 255:
        raise ProtocolError(f"exit code {exit_code}, expected 0 to 255")
    if blob:
        raise ProtocolError("a frame that ends a cell has no blob")
    error = fields.optional_mapping(header, "error")
    failure = None if error is None else CellError.read(error)
    return Done(cell_id, exit_code, failure, fields.flag(header, "interrupted"))


def _value(header: Mapping[str, object], blob: bytes) -> ValueTold:
    error = fields.optional_mapping(header, "error")
    if error is None:
        return ValueTold(blob, fields.flag(header, "more"), None)
    message = "\n".join(map(_printable, fields.text(error, "message")[:_REFUSAL_CHARACTERS_AT_MOST].split("\n")))
    return ValueTold(b"", False, (_one_of(VALUE_REFUSALS, fields.text(error, "kind")), message))


def _name_lines(blob: bytes) -> tuple[bytes, ...]:
    if len(blob) > _NAMES_BYTES_AT_MOST:
        raise ProtocolError(f"names of {len(blob)} bytes, at most {_NAMES_BYTES_AT_MOST} allowed")
    if blob.count(b"\n") >= NAMES_AT_MOST:
        raise ProtocolError(f"more than {NAMES_AT_MOST} names")
    return tuple(blob.split(b"\n")) if blob else ()


def read_name(line: bytes) -> tuple[str, Named]:
    """An array of name, type, short value, size, and fingerprint or null."""
    if len(line) > _NAME_LINE_BYTES_AT_MOST:
        raise ProtocolError(f"a name in {len(line)} bytes, at most {_NAME_LINE_BYTES_AT_MOST} allowed")
    try:
        row = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError):
        raise ProtocolError("a name that is not JSON in ASCII") from None
    return _named(row)


def _named(row: object) -> tuple[str, Named]:
    if not isinstance(row, list) or len(row) != 5:
        raise ProtocolError("an entry of names has five fields")
    name, kind, value, size_bytes, fingerprint = row
    if type(size_bytes) is not int or not 0 <= size_bytes <= wire.SIZE_AT_MOST:
        raise ProtocolError("the size of a name's value is zero or more, and not beyond reason")
    if fingerprint is not None and not (isinstance(fingerprint, str) and _FINGERPRINT.fullmatch(fingerprint)):
        raise ProtocolError("a fingerprint is 32 hexadecimal digits")
    return _one_line(name), Named(_one_line(kind), _one_line(value), size_bytes, fingerprint)


def _one_line(text: object) -> str:
    """Text that can be printed anywhere: no control characters, no halves of characters."""
    if not isinstance(text, str) or len(text) > _NAME_CHARACTERS_AT_MOST:
        raise ProtocolError(f"an entry of names has texts of at most {_NAME_CHARACTERS_AT_MOST} characters")
    return _printable(text)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _NUMBER_AT_MOST:
        raise ProtocolError("the number of a result is zero or more, and not beyond reason")
    return value


def _display_id(text: str | None) -> str | None:
    if text is not None and len(text) > _DISPLAY_ID_CHARACTERS_AT_MOST:
        raise ProtocolError(f"a display id of {len(text)} characters, at most {_DISPLAY_ID_CHARACTERS_AT_MOST} allowed")
    return text


def _mime(value: object) -> tuple[str, str, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise ProtocolError("a form of a rich result is an array of name, form and length")
    name, form, length = value
    if not isinstance(name, str) or len(name) > _MIME_CHARACTERS_AT_MOST:
        raise ProtocolError("a form of a rich result has a short string as its name")
    if type(length) is not int or length < 0:
        raise ProtocolError("a form of a rich result has a length of zero or more")
    return name, _one_of(_FORMS, form), length


def _one_of(allowed: tuple[str, ...], value: object) -> str:
    if value not in allowed:
        raise ProtocolError(f"{value!r:.80} is none of {', '.join(allowed)}")
    return str(value)
