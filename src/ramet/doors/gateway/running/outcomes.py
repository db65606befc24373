"""The values of a run: a call of a server tool, the calls of client tools that its code makes, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ramet.doors.gateway.running.blocks import Block


@dataclass(frozen=True, slots=True)
class CellRequest:
    """A call of a server tool, as the model made it."""

    tool_use_id: str  # "srvtoolu_..."
    name: str  # "code_execution", "bash_code_execution" or "text_editor_code_execution"
    input: Mapping[str, object]  # anything that the model wrote
    version: str  # "20250522", "20250825", "20260120" or "20260521"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that code may call and the client carries out."""

    name: str
    description: str
    input_schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PendingToolCall:
    """A call that waits for the client."""

    id: str  # "toolu_..."
    name: str
    input: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The code waits for all of these calls."""

    calls: tuple[PendingToolCall, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The call of the server tool has ended."""

    block: Block  # the whole `*_tool_result`
    model_text: str | list[dict[str, object]]  # content of an ordinary tool_result
    hidden_chars: int = 0  # characters of tool results that only the code has read


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Time limits."""

    cell_seconds: float = 90.0  # of running, not counting waits for the client
    call_seconds: float | None = 270.0  # of waiting for one result
    # Calls made together are sent together: those that follow each other within this time, up to a total delay.
    gather_seconds: float = 0.02
    gather_commands_seconds: float = 0.1  # for bash, where each call is a program that has to start
    gather_at_most_seconds: float = 0.25
