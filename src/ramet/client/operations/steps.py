"""The steps that an operation yields to its driver, and the helpers that most operations are made of.

    bytes                        send them
    RECEIVE                      wait for the next frame and send it in
    PULL                         send in the next piece of the data to upload, None after the last; throw in its error
    Emit(item)                   hand the item to the caller who iterates over this operation
    ToolCalled, ToolCancelled    hand the event to the object that answers the cell's tool calls

The value that the generator returns is the result of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import Any, NamedTuple, NoReturn, TypeVar

from ramet.client.open_streams import check_no_unread_stream
from ramet.client.tools.current_call import check_not_called_by_cell
from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode
from ramet.protocol.lazy_dataclasses import dataclass

Returned = TypeVar("Returned")


class Need(Enum):
    """An input that an operation waits for."""

    RECEIVE = 1
    PULL = 2


RECEIVE = Need.RECEIVE
PULL = Need.PULL


@dataclass(frozen=True, slots=True)
class Emit:
    """A piece of a stream, for the caller."""

    item: object


class ToolCalled(NamedTuple):
    """Code in the sandbox calls a tool and waits for the answer."""

    call_id: str
    tool: str
    accepts: tuple[str, ...]
    arguments: bytes  # JSON, as the code wrote it


class ToolCancelled(NamedTuple):
    """The code that made this call no longer waits for the answer."""

    call_id: str


Step = bytes | Need | Emit | ToolCalled | ToolCancelled
Operation = Generator[Step, Frame | bytes | None, Returned]


def ask(request: bytes, read: Callable[[Any], Returned]) -> Operation[Returned]:
    """Send a request, wait for its one answer, and return what ``read`` makes of the answer's header."""
    yield request
    frame = yield from next_frame()
    return read(final(frame).header)


def carry_out(request: bytes) -> Operation[None]:
    """Send a request and wait until the engine has carried it out."""
    yield request
    final((yield from next_frame()))


def send_pulled() -> Operation[None]:
    """Send the data to upload, piece by piece. Its end is the caller's to send."""
    try:
        while (piece := (yield PULL)) is not None:
            if not isinstance(piece, bytes):
                raise TypeError("the driver sent something that is not bytes")
            for start in range(0, len(piece), calls.CHUNK_BYTES):
                yield encode(calls.CHUNK, {}, piece[start : start + calls.CHUNK_BYTES])
    except Exception:
        # The source failed. Wait until the engine has let go of it: the caller may try again at once.
        yield encode(calls.ABORT, {})
        yield from next_frame()
        raise


def next_frame() -> Operation[Frame]:
    frame = yield RECEIVE
    if not isinstance(frame, Frame):
        raise TypeError("the driver sent something that is not a frame")
    return frame


def final(frame: Frame, expected: int = calls.ANSWER) -> Frame:
    """Return the frame if it is of the expected kind. Raises the error that it carries, or ProtocolError."""
    if frame.kind != expected:
        raise unexpected(frame)
    return frame


def refuse(frame: Frame) -> NoReturn:
    raise unexpected(frame)


def unexpected(frame: Frame) -> Exception:
    """The exception for a frame out of step: the error that the engine reports in it, else a ProtocolError."""
    if frame.kind == calls.ERROR:
        return calls.read_error(frame.header)
    return ProtocolError(f"the engine answered with a frame of kind {frame.kind}")


def check_may_wait(sandbox_id: str) -> None:
    """Check an operation that waits its turn in the sandbox's queue. Raises InvalidArgument where that would deadlock.

    The caller may be the handler of a tool that the running cell waits for, or hold an unread stream of that cell.
    """
    check_not_called_by_cell(sandbox_id)
    check_no_unread_stream(sandbox_id)
