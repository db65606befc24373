"""Sandboxes as client tools of the Messages API: a loop of your own, or the tool runner of the ``anthropic`` SDK.

tools = SandboxTools(sandbox)
message = client.messages.create(tools=tools.definitions, messages=messages, ...)
messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": tools.results(message)}]

client.beta.messages.tool_runner(tools=tools.runnable, ...)     # or let the SDK loop
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ramet import AsyncSandbox, InvalidArgument, Sandbox
from ramet.integrations.missing import missing
from ramet.integrations.results import Shown
from ramet.integrations.toolbox import SandboxTool, sandbox_tools

if TYPE_CHECKING:
    from anthropic.lib.tools import BetaAsyncFunctionTool, BetaFunctionTool
    from anthropic.types import Message, ToolParam, ToolResultBlockParam, ToolUseBlock
    from anthropic.types.beta import BetaMessage, BetaToolUseBlock

    AnyToolUse = ToolUseBlock | BetaToolUseBlock | Mapping[str, Any]
    AnyMessage = Message | BetaMessage | Mapping[str, Any]


class _Tools:
    """The common part of both classes: the definitions, and the choice of blocks."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self._tools = {tool.name: tool for tool in sandbox_tools(timeout_seconds)}

    def __contains__(self, name: object) -> bool:
        """Whether a tool of this name is one of these."""
        return name in self._tools

    @property
    def definitions(self) -> list[ToolParam]:
        """For ``tools`` of ``messages.create``, alone or among others."""
        return [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in self._tools.values()
        ]

    def _tool(self, block: AnyToolUse) -> SandboxTool:
        """The tool that a block calls. Raises InvalidArgument if it is none of these."""
        name = _get(block, "name")
        if name not in self._tools:
            raise InvalidArgument(f"block must call one of the tools {', '.join(self._tools)}, got {name!r:.100}")
        return self._tools[name]

    def _ours(self, message: AnyMessage) -> list[AnyToolUse]:
        blocks: Iterable[Any] = _get(message, "content")
        return [block for block in blocks if _get(block, "type") == "tool_use" and _get(block, "name") in self._tools]


class SandboxTools(_Tools):
    """The tools of a Sandbox, for ``anthropic.Anthropic``."""

    def __init__(self, sandbox: Sandbox, *, timeout_seconds: float | None = None) -> None:
        super().__init__(timeout_seconds)
        self._sandbox = sandbox

    def result(self, block: AnyToolUse) -> ToolResultBlockParam:
        """Run the tool of a ``tool_use`` block and return the ``tool_result`` block that answers it.

        Raises InvalidArgument if the block calls another tool, and RametError if the sandbox is gone.
        """
        return _block(block, self._tool(block).call(self._sandbox, _get(block, "input")))

    def results(self, message: AnyMessage) -> list[ToolResultBlockParam]:
        """Answer all blocks of a message that use one of these tools, in order. Blocks of other tools are left to you.

        Raises RametError if the sandbox is gone.
        """
        return [self.result(block) for block in self._ours(message)]

    @property
    def runnable(self) -> list[BetaFunctionTool[Any]]:
        """For ``tools`` of ``client.beta.messages.tool_runner``. Raises ImportError without the package."""
        try:
            from anthropic.lib.tools import BetaFunctionTool, ToolError
        except ImportError as error:
            raise missing("anthropic", "anthropic") from error

        def runnable(tool: SandboxTool) -> BetaFunctionTool[Any]:
            def run(**arguments: Any) -> Any:
                shown = tool.call(self._sandbox, arguments)
                if shown.failed:
                    raise ToolError(_content(shown))
                return _content(shown)

            return BetaFunctionTool(run, name=tool.name, description=tool.description, input_schema=tool.input_schema)

        return [runnable(tool) for tool in self._tools.values()]


class AsyncSandboxTools(_Tools):
    """The tools of an AsyncSandbox, for ``anthropic.AsyncAnthropic``."""

    def __init__(self, sandbox: AsyncSandbox | Sandbox, *, timeout_seconds: float | None = None) -> None:
        super().__init__(timeout_seconds)
        self._sandbox = sandbox

    async def result(self, block: AnyToolUse) -> ToolResultBlockParam:
        """Run the tool of a ``tool_use`` block and return the ``tool_result`` block that answers it.

        Raises InvalidArgument if the block calls another tool, and RametError if the sandbox is gone.
        """
        return _block(block, await self._tool(block).acall(self._sandbox, _get(block, "input")))

    async def results(self, message: AnyMessage) -> list[ToolResultBlockParam]:
        """Answer all blocks of a message that use one of these tools, in order. Blocks of other tools are left to you.

        Raises RametError if the sandbox is gone.
        """
        return [await self.result(block) for block in self._ours(message)]

    @property
    def runnable(self) -> list[BetaAsyncFunctionTool[Any]]:
        """For ``tools`` of an asynchronous client's ``beta.messages.tool_runner``. Raises ImportError without it."""
        try:
            from anthropic.lib.tools import BetaAsyncFunctionTool, ToolError
        except ImportError as error:
            raise missing("anthropic", "anthropic") from error

        def runnable(tool: SandboxTool) -> BetaAsyncFunctionTool[Any]:
            async def run(**arguments: Any) -> Any:
                shown = await tool.acall(self._sandbox, arguments)
                if shown.failed:
                    raise ToolError(_content(shown))
                return _content(shown)

            return BetaAsyncFunctionTool(
                run, name=tool.name, description=tool.description, input_schema=tool.input_schema
            )

        return [runnable(tool) for tool in self._tools.values()]


def _block(block: AnyToolUse, shown: Shown) -> ToolResultBlockParam:
    return {
        "type": "tool_result",
        "tool_use_id": _get(block, "id"),
        "content": _content(shown),
        "is_error": shown.failed,
    }


def _content(shown: Shown) -> list[Any]:
    return [
        {"type": "text", "text": shown.text},
        *(
            {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.base64}}
            for image in shown.images
        ),
    ]


def _get(one: object, name: str) -> Any:
    """A field of a block, which is an object of the SDK or plain JSON."""
    return one.get(name) if isinstance(one, Mapping) else getattr(one, name, None)
