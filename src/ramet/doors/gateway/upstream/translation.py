"""Translates a client's history for the upstream: ordinary messages with ordinary tool calls.

    assistant [text, server_tool_use A, result A, text]   ->  assistant [text, tool_use A]  user [tool_result A]
                                                              assistant [text]
    assistant [server_tool_use A, tool_use p]             ->  assistant [tool_use A]
    user      [tool_result p]                             ->  (p happened inside the code of A)
    assistant [result A, text]                            ->  user [tool_result A]  assistant [text]

The same history always gives the same messages, whether its end was written in this turn or in an earlier one, so that
the upstream finds them in its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ramet.doors.gateway.kinds import (
    AnyBlock,
    Message,
    content_blocks,
    is_own_result,
    is_own_use,
    is_programmatic,
    upstream_id,
)

_NEVER_RAN = "This call was not executed."

Told = str | list[dict[str, Any]]
# Maps a call and its result block to the text for the model.
Tell = Callable[[AnyBlock, AnyBlock], Told]


def translate(messages: Sequence[Message], tell: Tell, tell_upload: Callable[[str], str]) -> list[Message]:
    """Translate a history. ``tell_upload`` maps the id of an uploaded file to a text for the model."""
    return _Translation(messages, tell, tell_upload).run()


class _Translation:
    def __init__(self, messages: Sequence[Message], tell: Tell, tell_upload: Callable[[str], str]) -> None:
        self._messages = messages
        self._tell = tell
        self._tell_upload = tell_upload
        blocks = [block for message in messages for block in content_blocks(message)]
        self._results = {block.get("tool_use_id"): block for block in blocks if is_own_result(block)}
        self._inner = {block.get("id") for block in blocks if is_programmatic(block)}
        self._out: list[Message] = []

    def run(self) -> list[Message]:
        for message in self._messages:
            if message.get("role") == "assistant":
                self._assistant(message)
            elif message.get("role") == "user":
                self._user(message)
            else:
                self._out.append(message)
        return self._out

    def _user(self, message: Message) -> None:
        if isinstance(message.get("content"), str):
            self._add(message)
            return
        blocks = []
        for block in content_blocks(message):
            if block.get("type") == "container_upload":
                blocks.append(self._upload(block))
            elif block.get("type") != "tool_result" or block.get("tool_use_id") not in self._inner:
                blocks.append(block)
        if blocks:
            self._add({**message, "content": blocks})

    def _assistant(self, message: Message) -> None:
        if isinstance(message.get("content"), str):
            self._add(message)
            return
        said: list[AnyBlock] = []
        owed: list[AnyBlock] = []
        answered = False
        for block in content_blocks(message):
            if is_own_result(block):
                answered = True
                continue
            if answered and owed:
                # The rest of the message was written after the model had read the results.
                self._say({**message, "content": said}, owed)
                said, owed = [], []
            answered = False
            if is_own_use(block):
                owed.append(block)
                said.append(_own_use(block))
            elif not is_programmatic(block):
                said.append(_plain(block))
        self._say({**message, "content": said}, owed)

    def _say(self, message: Message, owed: Sequence[AnyBlock]) -> None:
        if message["content"]:
            self._add(message)
        if owed:
            self._add({"role": "user", "content": [self._result(use) for use in owed]})

    def _result(self, use: AnyBlock) -> AnyBlock:
        """The tool_result for a cell, even if the cell ended in a later message."""
        block = self._results.get(use.get("id"))
        told: Told = _NEVER_RAN if block is None else self._tell(use, block)
        result: AnyBlock = {"type": "tool_result", "tool_use_id": upstream_id(str(use.get("id"))), "content": told}
        if block is None or _is_error(block):
            result["is_error"] = True
        return result if block is None else _cached_like(block, result)

    def _upload(self, block: AnyBlock) -> AnyBlock:
        return _cached_like(block, {"type": "text", "text": self._tell_upload(str(block.get("file_id")))})

    def _add(self, message: Message) -> None:
        """Append a message. Two of one role in a row become one, with tool results first."""
        if not self._out or self._out[-1].get("role") != message.get("role"):
            self._out.append(message)
            return
        blocks = content_blocks(self._out[-1]) + content_blocks(message)
        if message.get("role") == "user":
            blocks.sort(key=lambda block: block.get("type") != "tool_result")
        self._out[-1] = {**self._out[-1], "content": blocks}


def _own_use(block: AnyBlock) -> AnyBlock:
    found = block.get("input")
    use: AnyBlock = {
        "type": "tool_use",
        "id": upstream_id(str(block.get("id"))),
        "name": block.get("name"),
        "input": found if isinstance(found, dict) else {},
    }
    return _cached_like(block, use)


def _cached_like(block: AnyBlock, other: AnyBlock) -> AnyBlock:
    """Keep a client's mark for the upstream's cache where it was."""
    if block.get("cache_control") is not None:
        other["cache_control"] = block["cache_control"]
    return other


def _plain(block: AnyBlock) -> AnyBlock:
    """The call without its caller: ordinary upstreams know only one."""
    if block.get("type") != "tool_use" or "caller" not in block:
        return block
    return {name: value for name, value in block.items() if name != "caller"}


def _is_error(block: AnyBlock) -> bool:
    content = block.get("content")
    return isinstance(content, dict) and str(content.get("type", "")).endswith("_error")
