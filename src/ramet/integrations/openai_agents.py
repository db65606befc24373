"""Sandboxes as function tools of the OpenAI Agents SDK, the package ``openai-agents``.

Agent(name="analyst", tools=sandbox_tools(sandbox))
"""

from __future__ import annotations

import json
from typing import Any

from ramet.integrations import toolbox
from ramet.integrations.faces import AnySandbox
from ramet.integrations.missing import missing
from ramet.integrations.results import Shown

try:
    from agents import FunctionTool, Tool, ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext
except ImportError as error:
    raise missing("openai-agents", "openai-agents") from error


def sandbox_tools(sandbox: AnySandbox, *, timeout_seconds: float | None = None) -> list[Tool]:
    """Tools that run code and use files in a sandbox. ``timeout_seconds`` is for code without a timeout of its own."""
    return [_function_tool(tool, sandbox) for tool in toolbox.sandbox_tools(timeout_seconds)]


def _function_tool(tool: toolbox.SandboxTool, sandbox: AnySandbox) -> FunctionTool:
    async def invoke(context: ToolContext[Any], arguments: str) -> object:
        try:
            given = json.loads(arguments or "{}")
        except ValueError as error:
            return f"the arguments are not JSON: {error}"
        return _output(await tool.acall(sandbox, given))

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.input_schema,
        on_invoke_tool=invoke,
        strict_json_schema=False,  # strict mode would make every argument required
    )


def _output(shown: Shown) -> object:
    if not shown.images:
        return shown.text
    return [ToolOutputText(text=shown.text), *(ToolOutputImage(image_url=image.url) for image in shown.images)]
