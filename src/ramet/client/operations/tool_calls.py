"""Operations on tools: give a sandbox its tools, and answer the calls of its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ramet.client.operations.steps import Operation, ask, carry_out
from ramet.protocol import calls, fields
from ramet.protocol.frames import encode, encode_text

if TYPE_CHECKING:
    from ramet.protocol.tools.socket_frames import FailureKind
    from ramet.protocol.tools.values import EncodedValue


class ToolFailure(NamedTuple):
    """Why a call failed, as the code that made it sees it."""

    kind: FailureKind
    message: str


ToolAnswer: TypeAlias = "EncodedValue | ToolFailure"


def set_tools(sandbox_id: str, tools: bytes) -> Operation[None]:
    """Give a sandbox these encoded tools, for cells that begin from now on."""
    return carry_out(encode(calls.SET_TOOLS, {"sandbox": sandbox_id}, tools))


def answer_tool(sandbox_id: str, call_id: str, answer: ToolAnswer) -> Operation[bool]:
    """Answer a call, a long value in pieces. Returns False if the code no longer waited for it."""
    header: dict[str, object] = {"sandbox": sandbox_id, "call": call_id, "outcome": "value", "more": False}
    if isinstance(answer, ToolFailure):
        header |= {"outcome": "error", **answer._asdict()}
        return _ask_if_taken(encode(calls.TOOL_ANSWER, header))
    if answer.size_bytes <= calls.CHUNK_BYTES:
        return _ask_if_taken(encode(calls.TOOL_ANSWER, header, answer.whole()))
    return _answer_in_pieces({**header, "more": True}, answer)


def _ask_if_taken(request: bytes) -> Operation[bool]:
    return ask(request, lambda header: fields.flag(header, "taken"))


def _answer_in_pieces(header: dict[str, object], answer: EncodedValue) -> Operation[bool]:
    pieces = answer.pieces(calls.CHUNK_BYTES)
    yield encode(calls.TOOL_ANSWER, header, next(pieces))
    for piece in pieces:
        yield encode(calls.CHUNK, {}, piece)
    return (yield from _ask_if_taken(encode(calls.END, {})))


def one_way_answer(sandbox_id: str, call_id: str, answer: ToolAnswer) -> bytes | None:
    """Encode a short answer as a frame to which the engine sends no reply. None if the answer is too long for one.

    Because nothing comes back, it may go over the very connection that runs the cell.
    """
    header: dict[str, object] = {"sandbox": sandbox_id, "call": call_id, "more": False, "quiet": True}
    if isinstance(answer, ToolFailure):
        return encode(calls.TOOL_ANSWER, {**header, "outcome": "error", **answer._asdict()})
    if answer.size_bytes > calls.CHUNK_BYTES:
        return None
    if not (sandbox_id.isidentifier() and call_id.isidentifier()):
        return encode(calls.TOOL_ANSWER, {**header, "outcome": "value"}, answer.whole())
    # The usual case is written by hand: code may make thousands of calls, and these ids need no JSON escapes.
    text = f'{{"sandbox":"{sandbox_id}","call":"{call_id}","outcome":"value","more":false,"quiet":true}}'
    return encode_text(calls.TOOL_ANSWER, text, answer.whole())
