"""Sandboxes as a toolset of Pydantic AI.

Agent(model, toolsets=[sandbox_toolset(sandbox)])
"""

from __future__ import annotations

from typing import Any

from ramet.integrations import toolbox
from ramet.integrations.faces import AnySandbox
from ramet.integrations.missing import missing
from ramet.integrations.results import Shown

try:
    from pydantic_ai import BinaryContent, FunctionToolset, Tool
    from pydantic_ai.exceptions import ToolFailed
except ImportError as error:
    raise missing("pydantic-ai-slim", "pydantic-ai") from error


def sandbox_toolset(sandbox: AnySandbox, *, timeout_seconds: float | None = None) -> FunctionToolset[Any]:
    """Tools that run code and use files in a sandbox. ``timeout_seconds`` is for code without a timeout of its own."""
    return FunctionToolset([_tool(tool, sandbox) for tool in toolbox.sandbox_tools(timeout_seconds)])


def _tool(tool: toolbox.SandboxTool, sandbox: AnySandbox) -> Tool[Any]:
    async def run(**arguments: Any) -> object:
        return _returned(await tool.acall(sandbox, arguments))

    return Tool.from_schema(run, name=tool.name, description=tool.description, json_schema=tool.input_schema)


def _returned(shown: Shown) -> object:
    if shown.failed:
        # ToolFailed, not ModelRetry: the model reads the text and decides, and no retry is counted.
        raise ToolFailed(shown.text)
    if not shown.images:
        return shown.text
    return [shown.text, *(BinaryContent(image.data, media_type=image.media_type) for image in shown.images)]
