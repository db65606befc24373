"""Exceptions that a failed tool call raises in the code that made it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ToolError(Exception):
    """A call of a tool failed: `tool` is its name, `kind` says in which way."""

    # Cells have it among their names: tracebacks then show the bare name, and child processes can send it to each
    # other.
    __module__ = "__main__"

    def __init__(self, message: str = "", tool: str | None = None, kind: str = "error") -> None:
        super().__init__(message)
        self.tool = tool
        self.kind = kind

    def __reduce__(self) -> Any:
        """Pickles as a call of `failure`, which every process that calls tools can import."""
        if type(self) in (ToolError, ToolTimeout):
            return failure, (self.tool, self.kind, str(self))
        return super().__reduce__()


class ToolTimeout(ToolError, TimeoutError):
    """The answer did not come in time. Shown as the TimeoutError that it also is."""


ToolTimeout.__name__ = ToolTimeout.__qualname__ = "TimeoutError"
ToolTimeout.__module__ = "builtins"


def failure(tool: str | None, kind: str, message: str) -> ToolError:
    """Makes the exception for a call that ended in this way."""
    return (ToolTimeout if kind == "timeout" else ToolError)(message, tool, kind)
