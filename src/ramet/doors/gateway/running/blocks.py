"""The result blocks of server tools.

All three tools follow one pattern: `<name>_tool_result` holds `<name>_result` with `<name>_output` for each file, or
`<name>_tool_result_error`. Only the editor's results have shapes of their own, see ``text_editor``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

ErrorCode = Literal[
    "invalid_tool_input",
    "unavailable",
    "too_many_requests",
    "execution_time_exceeded",
    "output_file_too_large",  # bash only
    "file_not_found",  # editor only
]
Block = dict[str, object]

BASH = "bash_code_execution"
EDITOR = "text_editor_code_execution"


def tool_result(name: str, tool_use_id: str, content: Mapping[str, object]) -> Block:
    """The block around any content."""
    return {"type": f"{name}_tool_result", "tool_use_id": tool_use_id, "content": dict(content)}


def execution_result(name: str, stdout: str, stderr: str, return_code: int, file_ids: Sequence[str]) -> Block:
    """The result of a cell that ended."""
    return {
        "type": f"{name}_result",
        "stdout": stdout,
        "stderr": stderr,
        "return_code": return_code,
        "content": [{"type": f"{name}_output", "file_id": file_id} for file_id in file_ids],
    }


def execution_error(name: str, error_code: ErrorCode, message: str | None = None) -> Block:
    """The error of a call without a result. Only the editor's errors can hold more than a code."""
    block: Block = {"type": f"{name}_tool_result_error", "error_code": error_code}
    if name == EDITOR:
        block["error_message"] = message
    return block
