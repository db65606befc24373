"""What is told to the code that called a tool: its value, or why there is none. Nothing of the host but its message."""

from __future__ import annotations

from collections.abc import Collection

from ramet.client.operations import ToolAnswer, ToolFailure
from ramet.client.tools import WrongArguments
from ramet.errors import RametError
from ramet.protocol.tool_frames import FailureKind
from ramet.protocol.tool_values import CannotCross, encode_value

MESSAGE_CHARACTERS_AT_MOST = 10_000
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
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    try:
        text = str(error)
    except Exception:
        return ""
    if isinstance(error, ImportError) and error.path:
        text = text.replace(f" ({error.path})", "").replace(error.path, "")
    return text


def _cut(text: str) -> str:
    if len(text) <= MESSAGE_CHARACTERS_AT_MOST:
        return text
    return text[: MESSAGE_CHARACTERS_AT_MOST - 4] + " ..."


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
