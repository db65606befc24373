"""Finds the open calls in a client's history: cells that have not ended, and the tool results for them.

A request can come in the middle of a turn:

    assistant [server_tool_use A, tool_use p]   user [tool_result p]           the code of A waits for p
    assistant [server_tool_use A, tool_use X]   user [tool_result X]           A has not begun: it waited for the client
    assistant [server_tool_use A, B, tool_use p]  user [tool_result p]         after A, B runs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.doors.gateway.errors import invalid
from ramet.doors.gateway.kinds import (
    AnyBlock,
    Message,
    calling_cell,
    content_blocks,
    is_own_result,
    is_own_use,
    is_programmatic,
)

# Blocks of a result that only a model can read.
_NOT_FOR_CODE = frozenset(("image", "document"))


@dataclass(frozen=True)
class ToolAnswer:
    """The result of a client's tool that code called."""

    tool_use_id: str
    content: str | list[dict[str, Any]]
    is_error: bool


@dataclass(frozen=True)
class OpenCalls:
    """The point at which a request continues."""

    cells: tuple[AnyBlock, ...] = ()
    """Calls of code execution without a result, in the order in which they were made."""
    answers: tuple[ToolAnswer, ...] = ()
    """Results for the code of the first of these calls."""
    waiting_cell: str | None = None
    """The id of the cell that the results are for."""

    @property
    def answered_ids(self) -> frozenset[str]:
        return frozenset(answer.tool_use_id for answer in self.answers)


def open_calls(messages: Sequence[Message]) -> OpenCalls:
    """The open calls of a history. Raises ApiError if a call that code made has no result."""
    # Skip system messages, which may stand between a call and its result.
    messages = [message for message in messages if message.get("role") != "system"]
    callers = _check_answers(messages)
    blocks = [block for message in messages for block in content_blocks(message)]
    resolved = {block.get("tool_use_id") for block in blocks if is_own_result(block)}
    # Ignore results for code that has ended since.
    answers = [answer for answer in _answers(messages, callers) if callers[answer.tool_use_id] not in resolved]
    if answers and not is_results_only(messages[-1]):
        raise invalid("messages: results of tools that code has called must be sent alone, without other content")
    cells: list[AnyBlock] = []
    for message in _tail(messages):
        if message.get("role") == "assistant":
            cells += [
                block for block in content_blocks(message) if is_own_use(block) and block.get("id") not in resolved
            ]
    waiting = {callers[answer.tool_use_id] for answer in answers} & {str(cell.get("id")) for cell in cells}
    if not waiting:
        return OpenCalls(tuple(cells))
    cell_id = min(waiting)
    mine = tuple(answer for answer in answers if callers[answer.tool_use_id] == cell_id)
    return OpenCalls(tuple(cells), mine, cell_id)


def check_results(messages: Sequence[Message]) -> None:
    """Check that each tool result answers a call in the assistant's turn before it. Raises ApiError."""
    called: set[object] = set()
    before = "user"
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            if before == "user":
                called.clear()
            called.update(block.get("id") for block in content_blocks(message) if block.get("type") == "tool_use")
        elif role == "user":
            for at, block in enumerate(content_blocks(message)):
                if block.get("type") == "tool_result" and block.get("tool_use_id") not in called:
                    raise invalid(
                        f"messages.{index}.content.{at}: unexpected `tool_use_id` found in `tool_result` blocks: "
                        f"{str(block.get('tool_use_id'))[:80]}. Each `tool_result` block must have a corresponding "
                        "`tool_use` block in the previous message."
                    )
        if role in ("assistant", "user"):
            before = role


def _check_answers(messages: Sequence[Message]) -> dict[str, str]:
    """Check that each call that code made is followed by its result. Returns the cell of each call."""
    callers: dict[str, str] = {}
    for index, message in enumerate(messages):
        calls = [block for block in content_blocks(message) if is_programmatic(block)]
        if not calls or message.get("role") != "assistant":
            continue
        answered = {block.get("tool_use_id") for block in _user_blocks_after(messages, index)}
        missing = [str(call.get("id")) for call in calls if call.get("id") not in answered]
        if missing:
            raise invalid(
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        callers.update({str(call.get("id")): calling_cell(call) or "" for call in calls})
    return callers


def _user_blocks_after(messages: Sequence[Message], index: int) -> list[AnyBlock]:
    """The blocks of the user's turn after a message, which may be split into several messages."""
    blocks: list[AnyBlock] = []
    for message in messages[index + 1 :]:
        if message.get("role") != "user":
            break
        blocks += content_blocks(message)
    return [block for block in blocks if block.get("type") == "tool_result"]


def _tail(messages: Sequence[Message]) -> Sequence[Message]:
    """The end of a history in which the user has said nothing but tool results."""
    start = len(messages)
    while start and (messages[start - 1].get("role") == "assistant" or is_results_only(messages[start - 1])):
        start -= 1
    return messages[start:]


def is_results_only(message: Message) -> bool:
    blocks = content_blocks(message)
    return message.get("role") == "user" and bool(blocks) and all(b.get("type") == "tool_result" for b in blocks)


def _answers(messages: Sequence[Message], callers: dict[str, str]) -> list[ToolAnswer]:
    """The results for code in the user's last turn."""
    last = max((index for index, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    return [
        ToolAnswer(str(block["tool_use_id"]), _content(block), bool(block.get("is_error")))
        for block in _user_blocks_after(messages, last)
        if block.get("tool_use_id") in callers
    ]


def _content(block: AnyBlock) -> str | list[dict[str, Any]]:
    """The text that code gets. Images and documents are for a model; code cannot read them."""
    content = block.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    blocks = [one for one in content if isinstance(one, dict)]
    refused = next((one for one in blocks if one.get("type") in _NOT_FOR_CODE), None)
    if refused is not None:
        raise invalid(
            f"messages: the result of {block['tool_use_id']} holds a block of type `{refused['type']}`: results of "
            "tools that code has called must be text"
        )
    return blocks
