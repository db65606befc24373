"""The published OpenAI Agents SDK with a scripted model and the tools of a real sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from ramet import AsyncSandbox, Sandbox
from ramet.integrations.openai_agents import sandbox_tools
from tests.behaviour.waiting import wait_until
from tests.integrations.scripted import PLOT

NO_TRACES = RunConfig(tracing_disabled=True)


class Scripted(Model):
    """Says what it was given to say, and remembers what it was told."""

    def __init__(self, *turns: tuple[str, dict[str, Any]] | str) -> None:
        self._turns = list(turns)
        self.inputs: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        self.inputs.append(input)
        number, turn = len(self.inputs), self._turns.pop(0)
        output: Any
        if isinstance(turn, str):
            text = ResponseOutputText(text=turn, type="output_text", annotations=[])
            output = ResponseOutputMessage(
                id=f"msg_{number}", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            output = ResponseFunctionToolCall(
                call_id=f"call_{number}", name=turn[0], arguments=json.dumps(turn[1]), type="function_call"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError

    def told(self) -> Any:
        """What the last tool call gave."""
        return self.inputs[-1][-1]["output"]


async def test_an_agent_keeps_variables_between_calls() -> None:
    model = Scripted(
        ("run_python", {"code": "x = 6"}),
        ("run_bash", {"command": "echo here > note.txt"}),
        ("run_python", {"code": "x * 7, open('note.txt').read()"}),
        "42",
    )
    async with AsyncSandbox() as sandbox:
        agent = Agent(name="analyst", model=model, tools=sandbox_tools(sandbox))
        result = await Runner.run(agent, "what is it?", run_config=NO_TRACES)
    assert result.final_output == "42"
    assert model.told() == "value: (42, 'here\\n')"


async def test_a_plot_is_an_image_and_an_error_is_told(sandbox: Sandbox) -> None:
    model = Scripted(("run_python", {"code": PLOT}), ("run_python", {"code": "1 / 0"}), ("run_python", {}), "done")
    agent = Agent(name="analyst", model=model, tools=sandbox_tools(sandbox))
    await Runner.run(agent, "plot it", run_config=NO_TRACES)
    text, image = model.inputs[1][-1]["output"]
    assert text == {"type": "input_text", "text": "(1 image)"}
    assert image["type"] == "input_image"
    assert image["image_url"].startswith("data:image/png;base64,iVBOR")
    assert model.inputs[2][-1]["output"].endswith("ZeroDivisionError: division by zero")
    assert model.told() == "code is missing"


@pytest.mark.parametrize("is_async", [True, False])
async def test_cancelling_a_run_interrupts_the_cell(is_async: bool) -> None:
    """Of an AsyncSandbox exactly that cell; a Sandbox is interrupted in whatever it runs."""
    code = "import time; open('begun', 'w').close(); time.sleep(3600)"
    agent_model = Scripted(("run_python", {"code": code}))
    with Sandbox() as sandbox:
        used = await AsyncSandbox.connect(sandbox.id) if is_async else sandbox
        agent = Agent(name="analyst", model=agent_model, tools=sandbox_tools(used))
        running = asyncio.create_task(Runner.run(agent, "sleep", run_config=NO_TRACES))
        await asyncio.to_thread(wait_until, lambda: sandbox.files.exists("begun"), "the cell runs")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.to_thread(wait_until, lambda: sandbox.info().state == "idle", "the cell is interrupted")
        assert sandbox.run_code("time.sleep(0); 1").value == "1"
