"""The published `pydantic-ai` with a scripted model and the tools of a real sandbox."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, BinaryContent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ramet import AsyncSandbox, Sandbox
from ramet.integrations.pydantic_ai import sandbox_toolset
from tests.integrations.scripted import PLOT, PNG


def scripted(*turns: tuple[str, dict[str, Any]] | str) -> FunctionModel:
    left = list(turns)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = left.pop(0)
        return ModelResponse([TextPart(turn) if isinstance(turn, str) else ToolCallPart(*turn)])

    return FunctionModel(answer)


def returned(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def test_an_agent_keeps_variables_between_calls() -> None:
    model = scripted(
        ("run_python", {"code": "x = 6"}),
        ("write_file", {"path": "note.txt", "content": "here"}),
        ("run_python", {"code": "x * 7, open('note.txt').read()"}),
        "42",
    )
    async with AsyncSandbox() as sandbox:
        result = await Agent(model, toolsets=[sandbox_toolset(sandbox)]).run("what is it?")
    assert result.output == "42"
    assert [part.content for part in returned(result.all_messages())] == [
        "(no output)",
        "4 bytes written to note.txt",
        "value: (42, 'here')",
    ]


async def test_a_plot_is_an_image_and_an_error_is_told(sandbox: Sandbox) -> None:
    model = scripted(("run_python", {"code": PLOT}), ("run_python", {"code": "1 / 0"}), ("run_python", {}), "done")
    result = await Agent(model, toolsets=[sandbox_toolset(sandbox)]).run("plot it")
    plot, failed, wrong = returned(result.all_messages())
    assert isinstance(plot.content, list)
    text, image = plot.content
    assert text == "(1 image)"
    assert isinstance(image, BinaryContent)
    assert (image.media_type, image.data[:8]) == ("image/png", PNG)
    assert (failed.outcome, str(failed.content)[-16:]) == ("failed", "division by zero")
    assert (wrong.outcome, wrong.content) == ("failed", "code is missing")


async def test_models_are_told_of_the_tools(sandbox: Sandbox) -> None:
    seen: list[AgentInfo] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info)
        return ModelResponse([TextPart("done")])

    await Agent(FunctionModel(answer), toolsets=[sandbox_toolset(sandbox)]).run("what have you got?")
    tools = seen[0].function_tools
    assert [tool.name for tool in tools] == ["run_python", "run_bash", "list_files", "read_file", "write_file"]
    assert tools[0].parameters_json_schema["required"] == ["code"]
