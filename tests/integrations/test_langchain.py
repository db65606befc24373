"""The published `langchain-core` with a fake chat model and the tools of a real sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool

from ramet import AsyncSandbox, Result, Sandbox
from ramet.integrations.langchain import sandbox_tools
from tests.integrations.scripted import PLOT


def uses(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": "call_1"}])


def run(model: FakeMessagesListChatModel, tools: dict[str, BaseTool], messages: list[BaseMessage]) -> list[ToolMessage]:
    """An agent in its simplest form: until the model uses no tool."""
    told = []
    while (said := model.invoke(messages)).tool_calls:
        messages.append(said)
        for call in said.tool_calls:
            told.append(tools[call["name"]].invoke(call))
            messages.append(told[-1])
    return told


def by_name(tools: list[BaseTool]) -> dict[str, BaseTool]:
    return {tool.name: tool for tool in tools}


def test_an_agent_keeps_variables_between_calls(sandbox: Sandbox) -> None:
    responses: list[BaseMessage] = [
        uses("run_python", code="x = 6"),
        uses("write_file", path="note.txt", content="here"),
        uses("run_python", code="x * 7, open('note.txt').read()"),
        AIMessage("42"),
    ]
    told = run(FakeMessagesListChatModel(responses=responses), by_name(sandbox_tools(sandbox)), [HumanMessage("?")])
    assert [message.content for message in told] == [
        "(no output)",
        "4 bytes written to note.txt",
        "value: (42, 'here')",
    ]
    assert [message.status for message in told] == ["success"] * 3
    assert isinstance(told[2].artifact, Result)
    assert told[2].artifact.value == "(42, 'here')"


def test_a_plot_is_an_image_block_and_an_error_has_its_status(sandbox: Sandbox) -> None:
    tools = by_name(sandbox_tools(sandbox))
    message = tools["run_python"].invoke(uses("run_python", code=PLOT).tool_calls[0])
    assert [block["type"] for block in message.content_blocks] == ["text", "image"]
    assert message.content_blocks[1]["mime_type"] == "image/png"
    assert message.content_blocks[1]["base64"].startswith("iVBOR")
    message = tools["run_python"].invoke(uses("run_python", code=f"{PLOT}\n1 / 0").tool_calls[0])
    assert message.status == "error"
    message = tools["run_python"].invoke(uses("run_python").tool_calls[0])
    assert (message.status, message.content) == ("error", "code is missing")


def test_models_are_told_of_the_tools(sandbox: Sandbox) -> None:
    tools = sandbox_tools(sandbox)
    assert [tool.name for tool in tools] == ["run_python", "run_bash", "list_files", "read_file", "write_file"]
    assert set(tools[0].args) == {"code", "timeout_seconds"}
    assert "keeps its state" in tools[0].description


async def test_tools_of_an_asynchronous_sandbox_are_awaited(sandbox: Sandbox) -> None:
    async with AsyncSandbox() as other:
        for tools in (by_name(sandbox_tools(other)), by_name(sandbox_tools(sandbox))):
            await tools["run_python"].ainvoke({"code": "x = 6"})
            assert await tools["run_python"].ainvoke({"code": "x * 7"}) == "value: 42"
            message = await tools["run_bash"].ainvoke(uses("run_bash", command="exit 3").tool_calls[0])
            assert (message.status, message.content) == ("error", "(exit code 3)")
        with pytest.raises(NotImplementedError):
            sandbox_tools(other)[0].invoke({"code": "1"})
