"""The frames between engine and guest: their kinds, and the engine's distrustful reading of what a guest sends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.frames import Frame, encode, encode_text
from ramet.protocol.results import CellError

# engine -> guest
CONFIGURE = 1
RUN = 2
THAWED = 3  # to a copy of a sandbox that cannot find out by itself, or that is to draw other random numbers
ASK_LOOPS = 4
ASK_NAMES = 5
WAKE = 6  # to a copy that nobody has given a cell yet; no answer
TOOLS = 7  # what code may call from now on, and where; no answer
# guest -> engine
READY = 1
CONFIGURED = 2
RESULT = 3
DONE = 4
LOOPS = 5
NAMES = 6

# To the REPL's main process only. A real-time signal that nothing else uses: the guest raises its own exception.
HARD_INTERRUPT_SIGNAL = 62

_FORMS = ("s", "b", "j")
_WHATS = ("value", "display", "update", "clear")
_MIMES_AT_MOST = 64
_MIME_CHARACTERS_AT_MOST = 255
NAMES_AT_MOST = 10_000
_NAMES_BYTES_AT_MOST = 8 * 1024 * 1024
_NAME_CHARACTERS_AT_MOST = 200  # of a name, of its type, of its short value
_SIZE_AT_MOST = 2**62
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
class Names:
    """The names of a guest's namespace; ``omitted`` ones were too many to be told."""

    names: Mapping[str, Named]
    omitted: int


Message = Configured | Rich | Done | Loops | Names


def thawed(reseed: bool, stir: bool) -> bytes:
    return encode(THAWED, {"reseed": reseed, "stir": stir})


def wake() -> bytes:
    return encode(WAKE, {})


def ask_loops() -> bytes:
    return encode(ASK_LOOPS, {})


def ask_names(seconds: float) -> bytes:
    """Answered after about so many seconds at most; what is not looked at by then is told without a fingerprint."""
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


def run(cell_id: int, language: str, code: bytes) -> bytes:
    """``language`` is one of those that ``checks`` knows: nothing that JSON would have to escape."""
    return encode_text(RUN, f'{{"id":{cell_id},"language":"{language}"}}', code)


def tools(socket_name: str, encoded: bytes) -> bytes:
    """The tools of the cells to come, and the abstract name of the socket that calls are made at."""
    return encode(TOOLS, {"socket": socket_name}, encoded)


def read(frame: Frame) -> Message:
    """What a running guest said. READY is for the boot of a template only, and so refused here like an unknown kind."""
    header = frame.header
    if frame.kind == DONE:
        return _done(header, frame.blob)
    if frame.kind == RESULT:
        return Rich(
            cell_id=fields.whole(header, "id"),
            what=_one_of(_WHATS, fields.text(header, "what")),
            display_id=fields.optional_text(header, "display_id"),
            mimes=read_mimes(fields.array(header, "mimes"), len(frame.blob)),
            blob=frame.blob,
        )
    if frame.kind == CONFIGURED:
        return Configured(fields.optional_text(header, "error"))
    if frame.kind == LOOPS:
        return Loops(fields.flag(header, "running"))
    if frame.kind == NAMES:
        return Names(_names(frame.blob), fields.natural(header, "omitted"))
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


def _names(blob: bytes) -> dict[str, Named]:
    """An array of [name, type, short value, size, fingerprint or null]."""
    if len(blob) > _NAMES_BYTES_AT_MOST:
        raise ProtocolError(f"names of {len(blob)} bytes, at most {_NAMES_BYTES_AT_MOST} allowed")
    try:
        rows = json.loads(blob.decode("ascii"))
    except (ValueError, RecursionError):
        raise ProtocolError("names that are not JSON in ASCII") from None
    if not isinstance(rows, list) or len(rows) > NAMES_AT_MOST:
        raise ProtocolError(f"names are an array of at most {NAMES_AT_MOST} entries")
    return dict(_named(row) for row in rows)


def _named(row: object) -> tuple[str, Named]:
    if not isinstance(row, list) or len(row) != 5:
        raise ProtocolError("an entry of names has five fields")
    name, kind, value, size_bytes, fingerprint = row
    if type(size_bytes) is not int or not 0 <= size_bytes <= _SIZE_AT_MOST:
        raise ProtocolError("the size of a name's value is zero or more, and not beyond reason")
    if fingerprint is not None and not (isinstance(fingerprint, str) and _FINGERPRINT.fullmatch(fingerprint)):
        raise ProtocolError("a fingerprint is 32 hexadecimal digits")
    return _one_line(name), Named(_one_line(kind), _one_line(value), size_bytes, fingerprint)


def _one_line(text: object) -> str:
    """Text that can be printed anywhere: no control characters, no halves of characters."""
    if not isinstance(text, str) or len(text) > _NAME_CHARACTERS_AT_MOST:
        raise ProtocolError(f"an entry of names has texts of at most {_NAME_CHARACTERS_AT_MOST} characters")
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


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
