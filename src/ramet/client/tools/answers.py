"""What is told to the code that called a tool: its value, or why there is none. Nothing of the host but its message."""

from __future__ import annotations

import re
from collections.abc import Collection
from subprocess import SubprocessError

from ramet.client.operations import ToolAnswer, ToolFailure
from ramet.client.tools.tool import WrongArguments
from ramet.errors import RametError
from ramet.protocol.frames import encode_header
from ramet.protocol.tool_frames import FailureKind
from ramet.protocol.tool_values import CannotCross, encode_value

MESSAGE_CHARACTERS_AT_MOST = 10_000
# In the header of an answer, in which some characters take twelve bytes; a server takes none longer than 64 KiB.
_MESSAGE_BYTES_AT_MOST = 60_000
# A path as Python and its libraries put it into messages about files.
_PATH = re.compile(r"(['\"])/[^'\"\n]*\1|^/\S*$")
# To write more than this takes longer than others on an event loop should wait.
_SMALL_CHARACTERS = 64 * 1024
_SMALL_COUNT = 500


def encoded(value: object, accepts: Collection[str]) -> ToolAnswer:
    try:
        return encode_value(value, accepts)
    except CannotCross as error:
        return ToolFailure("error", _cut(str(error)))


def failure(error: BaseException, tool: str) -> ToolFailure:
    if isinstance(error, WrongArguments):
        return ToolFailure("invalid", _cut(f"wrong arguments for {tool}: {error}"))
    kind: FailureKind = "timeout" if isinstance(error, TimeoutError) else "error"
    return ToolFailure(kind, _cut(_message(error) or type(error).__name__))


def _message(error: BaseException) -> str:
    """What the error says, without the paths of the host that Python itself puts into messages."""
    if isinstance(error, RametError):
        return error.message
    try:
        text = str((isinstance(error, OSError) and error.strerror) or error)
    except Exception:
        return ""
    if isinstance(error, (OSError, SubprocessError)):
        text = _PATH.sub(lambda found: "'...'" if found[1] else "", text)
    if isinstance(error, SyntaxError):
        return error.msg
    if isinstance(error, ImportError) and error.path:
        text = text.replace(f" ({error.path})", "").replace(error.path, "")
    return text


def _cut(text: str) -> str:
    most = MESSAGE_CHARACTERS_AT_MOST
    if len(encode_header(text[:most])) > _MESSAGE_BYTES_AT_MOST:
        most //= 4
    return text if len(text) <= most else text[: most - 4] + " ..."


def is_small(value: object) -> bool:
    """It takes no time to speak of to write this as JSON."""
    waiting, characters, count = [value], 0, 0
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind is str or kind is bytes:
            characters += len(one)  # type: ignore[arg-type]
        elif kind is list or kind is tuple:
            count += len(one)  # type: ignore[arg-type]
            if count <= _SMALL_COUNT:
                waiting += one  # type: ignore[arg-type]
        elif kind is dict:
            count += len(one)  # type: ignore[arg-type]
            if count <= _SMALL_COUNT:
                waiting += one.values()  # type: ignore[attr-defined]
        elif kind not in (int, float, bool, type(None)):
            return False
        if count > _SMALL_COUNT or characters > _SMALL_CHARACTERS:
            return False
    return True
