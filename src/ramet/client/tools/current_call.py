"""The tool call that this thread or task answers, and the check that its handler does not wait for its own cell."""

from __future__ import annotations

from contextvars import ContextVar
from threading import get_ident

from ramet.errors import InvalidArgument
from ramet.protocol.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call that a tool's handler is answering: its tool, sandbox and id."""

    sandbox_id: str
    tool: str
    call_id: str


# Sandbox id, tool, call id, and the task or thread number in which the handler runs.
_current: ContextVar[tuple[str, str, str, object]] = ContextVar("ramet.current_tool_call")


def current_tool_call() -> ToolCall:
    """Return the tool call that is being answered here. Raises LookupError outside of a tool."""
    try:
        return ToolCall(*_current.get()[:3])
    except LookupError:
        raise LookupError("no tool call is being answered here") from None


def mark_tool_call(sandbox_id: str, tool: str, call_id: str, runner: object) -> None:
    """Record the call in the context in which its handler is about to run.

    A ToolCall is made only on request, because most handlers do not ask for it.
    """
    _current.set((sandbox_id, tool, call_id, runner))


def check_not_called_by_cell(sandbox_id: str) -> None:
    """Check an operation that waits for the running cell of a sandbox.

    Raises InvalidArgument if the caller is the handler of a tool call that this cell waits for: that would deadlock.
    """
    current = _current.get(None)
    if current is None or current[0] != sandbox_id:
        return
    runner = current[3]
    if runner == get_ident() or (not isinstance(runner, int) and runner is _current_task()):
        raise InvalidArgument(
            f"the tool {current[1]!r} cannot do this in sandbox {sandbox_id}: the cell that called it still runs",
            hint="a tool may use the files of this sandbox, and other sandboxes",
        )


def _current_task() -> object:
    from asyncio import current_task  # imported already, if the handler runs in a task

    try:
        return current_task()
    except RuntimeError:
        return None
