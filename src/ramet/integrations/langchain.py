"""Sandboxes as tools of LangChain and LangGraph.

create_agent(model, tools=sandbox_tools(sandbox))
"""

from __future__ import annotations

from typing import Any

from ramet import Sandbox
from ramet.integrations import toolbox
from ramet.integrations.faces import AnySandbox
from ramet.integrations.missing import missing
from ramet.integrations.results import Shown

try:
    from langchain_core.tools import BaseTool, StructuredTool, ToolException
except ImportError as error:
    raise missing("langchain-core", "langchain") from error

Content = str | list[str | dict[str, Any]]


def sandbox_tools(sandbox: AnySandbox, *, timeout_seconds: float | None = None) -> list[BaseTool]:
    """Tools that run code and use files in a sandbox. ``timeout_seconds`` is for code without a timeout of its own.

    With a Sandbox the tools can be invoked and awaited, with an AsyncSandbox awaited only. The artifact of a
    ToolMessage is the cell's ``Result``.
    """
    return [_tool(tool, sandbox) for tool in toolbox.sandbox_tools(timeout_seconds)]


class _Failed(ToolException):
    """Becomes a ToolMessage with status "error"."""

    def __init__(self, shown: Shown) -> None:
        super().__init__(shown.text)
        self.shown = shown


def _tool(tool: toolbox.SandboxTool, sandbox: AnySandbox) -> BaseTool:
    def run(**arguments: Any) -> tuple[Content, object]:
        return _answer(tool.call(sandbox, arguments))

    async def arun(**arguments: Any) -> tuple[Content, object]:
        return _answer(await tool.acall(sandbox, arguments))

    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.input_schema,
        func=run if isinstance(sandbox, Sandbox) else None,
        coroutine=arun,
        response_format="content_and_artifact",
        handle_tool_error=_told,
    )


def _answer(shown: Shown) -> tuple[Content, object]:
    if shown.failed:
        raise _Failed(shown)
    return _content(shown), shown.result


def _told(error: ToolException) -> Content:
    return _content(error.shown) if isinstance(error, _Failed) else str(error)


def _content(shown: Shown) -> Content:
    """The text, or blocks in LangChain's own form, which it translates for each provider."""
    if not shown.images:
        return shown.text
    images = [{"type": "image", "base64": one.base64, "mime_type": one.media_type} for one in shown.images]
    return [{"type": "text", "text": shown.text}, *images]
