"""Makes the answer to a tool call: the encoded value, or a failure with a message that shows no paths of the host."""

from __future__ import annotations

import re
from collections.abc import Collection
from subprocess import SubprocessError

from ramet.client.operations.tool_calls import ToolAnswer, ToolFailure
from ramet.client.tools.tool import WrongArguments
from ramet.errors import RametError
from ramet.protocol.frames import encode_header
from ramet.protocol.tools.socket_frames import FailureKind
from ramet.protocol.tools.values import CannotCross, encode_value

MESSAGE_CHARACTERS_AT_MOST = 10_000
# A message travels in the header of an answer, where some characters take twelve bytes; a server refuses headers of
# more than 64 KiB.
_MESSAGE_BYTES_AT_MOST = 60_000
# A path, as Python and its libraries write it into messages about files.
_PATH = re.compile(r"(['\"])/[^'\"\n]*\1|^/\S*$")
# Encoding more than this takes longer than other tasks of an event loop should wait.
_SMALL_CHARACTERS = 64 * 1024
_SMALL_COUNT = 500


def encoded(value: object, accepts: Collection[str]) -> ToolAnswer:
    """Encode the value of a tool in a format that the caller accepts. A value that cannot be encoded is a failure."""
    try:
        return encode_value(value, accepts)
    except CannotCross as error:
        return ToolFailure("error", _cut(str(error)))


def failure(error: BaseException, tool: str) -> ToolFailure:
    """Describe an exception of a tool to the code that called it."""
    if isinstance(error, WrongArguments):
        return ToolFailure("invalid", _cut(f"wrong arguments for {tool}: {error}"))
    kind: FailureKind = "timeout" if isinstance(error, TimeoutError) else "error"
    return ToolFailure(kind, _cut(_message(error) or type(error).__name__))


def _message(error: BaseException) -> str:
    """Return the message of an error, without the paths of the host that Python itself writes into messages."""
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
    """Return whether encoding this as JSON is so fast that an event loop need not hand it to a thread."""
    left, characters, count = [value], 0, 0
    while left:
        item = left.pop()
        kind = type(item)
        if kind is str or kind is bytes:
            characters += len(item)  # type: ignore[arg-type]
        elif kind is list or kind is tuple:
            count += len(item)  # type: ignore[arg-type]
            if count <= _SMALL_COUNT:
                left += item  # type: ignore[arg-type]
        elif kind is dict:
            count += len(item)  # type: ignore[arg-type]
            if count <= _SMALL_COUNT:
                left += item.values()  # type: ignore[attr-defined]
        elif kind not in (int, float, bool, type(None)):
            return False
        if count > _SMALL_COUNT or characters > _SMALL_CHARACTERS:
            return False
    return True
