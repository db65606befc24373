"""The published client against a gateway, asked plain or streamed, and what it answers as plain data."""

from __future__ import annotations

from typing import Any

import anthropic

KEY = "sk-of-a-test-client"
MODEL = "some-model"
# What the client is given and gives is JSON here: its types are not what is tested.
CODE_TOOL: Any = {"type": "code_execution_20260120", "name": "code_execution"}


def weather_tool(**more: Any) -> Any:
    schema = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
    return {
        "name": "get_weather",
        "description": "The weather at a place.",
        "input_schema": schema,
        "allowed_callers": ["code_execution_20260120"],
        **more,
    }


def user(content: str | list[dict[str, Any]]) -> Any:
    return {"role": "user", "content": content}


def results(message: Any, *texts: str, **more: Any) -> Any:
    """Results for the tools that an answer calls, in order."""
    ids = [block.id for block in message.content if block.type == "tool_use"]
    assert len(ids) == len(texts), f"{len(ids)} calls, {len(texts)} results"
    pairs = zip(ids, texts, strict=True)
    return user([{"type": "tool_result", "tool_use_id": one, "content": text, **more} for one, text in pairs])


def said(message: Any) -> Any:
    return {"role": "assistant", "content": message.content}


class Asking:
    """Asks the same way every time: plain, or streamed to the end."""

    def __init__(self, client: anthropic.Anthropic, *, stream: bool) -> None:
        self.client = client
        self.stream = stream

    def __call__(self, messages: Any, tools: Any = (CODE_TOOL,), **more: Any) -> Any:
        if isinstance(messages, str):
            messages = [user(messages)]
        given: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, "messages": messages, **more}
        if tools:
            given["tools"] = list(tools)
        if not self.stream:
            return self.client.messages.create(**given)
        with self.client.messages.stream(**given) as stream:
            return stream.get_final_message()


def shape(message: Any) -> list[str]:
    """Types of the blocks, in order."""
    return [block.type for block in message.content]


def texts(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")
