"""The call of a tool that is being answered here: who calls, and what its handler must not wait for."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from threading import get_ident

from ramet.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call that a tool's handler is answering: its tool, sandbox and id."""

    sandbox_id: str
    tool: str
    call_id: str


# The last is the task, or the number of the thread, in which the handler runs.
_current: ContextVar[tuple[str, str, str, object]] = ContextVar("ramet.current_tool_call")


def current_tool_call() -> ToolCall:
    """Return the tool call that is being answered here. Raises LookupError outside of a tool."""
    try:
        return ToolCall(*_current.get()[:3])
    except LookupError:
        raise LookupError("no tool call is being answered here") from None


def mark_tool_call(sandbox_id: str, tool: str, call_id: str, runner: object) -> None:
    """In a context of its own, in which a handler is about to run. Most do not ask, so no ToolCall is made yet."""
    _current.set((sandbox_id, tool, call_id, runner))


def check_not_in_its_way(sandbox_id: str) -> None:
    """For what waits for the end of a sandbox's running cell. Raises where that cell waits for us, a handler."""
    marked = _current.get(None)
    if marked is None or marked[0] != sandbox_id:
        return
    runner = marked[3]
    if runner == get_ident() or (not isinstance(runner, int) and runner is _current_task()):
        raise InvalidArgument(
            f"the tool {marked[1]!r} cannot do this in sandbox {sandbox_id}: the cell that called it still runs",
            hint="a tool may use the files of this sandbox, and other sandboxes",
        )


def _current_task() -> object:
    from asyncio import current_task  # there already, where a task is to be compared with it

    try:
        return current_task()
    except RuntimeError:
        return None
