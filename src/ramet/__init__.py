"""Ramet: stateful Python sandboxes on any Linux machine.

    from ramet import Sandbox

    with Sandbox() as sandbox:
        sandbox.run_code("x = 6")
        print(sandbox.run_code("print(x * 7)").stdout)

Public are ``ramet``, ``ramet.errors`` and ``ramet.integrations``; every other path may change with any release. Inside
the package only ``doors.gateway``, ``doors.mcp`` and ``integrations``, which use Ramet as everybody does, import this
module.
"""

from ramet.client.arguments import Mount, Template
from ramet.client.asynchronous.files import AsyncFiles
from ramet.client.asynchronous.forks import AsyncForks, AsyncSnapshot
from ramet.client.asynchronous.networks import AsyncExposed, AsyncSandboxNetwork
from ramet.client.asynchronous.sandbox import AsyncSandbox
from ramet.client.asynchronous.terminals import AsyncTerminal
from ramet.client.blocking.files import Files
from ramet.client.blocking.forks import Forks, Snapshot
from ramet.client.blocking.networks import Exposed, SandboxNetwork
from ramet.client.blocking.sandbox import Sandbox
from ramet.client.blocking.terminals import Terminal
from ramet.client.folders import Copied
from ramet.client.network import Network, Secret
from ramet.client.operations.network import Connection
from ramet.client.tools.current_call import ToolCall, current_tool_call
from ramet.client.tools.tool import Tool
from ramet.errors import (
    EngineClosed,
    EngineLost,
    ExecutionCancelled,
    ExecutionUnknown,
    FileError,
    FileExists,
    FileForbidden,
    FileIsFolder,
    FileNotFolder,
    FileNotFound,
    ForkedProcess,
    ForkFailed,
    HostNotCapable,
    InvalidArgument,
    LimitReached,
    MergeConflict,
    NameUnknown,
    NotPermitted,
    OutcomeUnknown,
    PointUnknown,
    ProtocolError,
    RametError,
    SandboxClosed,
    SandboxLost,
    TemplateFailed,
    ToolError,
    Unauthorized,
    Unreachable,
    ValueUnsupported,
)
from ramet.protocol.checks import Language
from ramet.protocol.values.differences import FileChange, FileState
from ramet.protocol.values.forks import Diff, ForkInfo, NameChange, NameValue
from ramet.protocol.values.history import History, MissingCell, Point, Undone
from ramet.protocol.values.listing import SandboxRow
from ramet.protocol.values.replays import ReplayEvent
from ramet.protocol.values.results import (
    CellError,
    ClearEvent,
    Event,
    ExitEvent,
    FileInfo,
    ImageInfo,
    OutputEvent,
    Result,
    ResultEvent,
    RichResult,
    SandboxInfo,
    ToolCallRecord,
    Truncated,
)
from ramet.protocol.values.specs import Limits
from ramet.protocol.values.takes import Taken
from ramet.protocol.values.terminals import TerminalInfo
from ramet.transport.embedded import close_engine

__all__ = [
    "AsyncExposed",
    "AsyncFiles",
    "AsyncForks",
    "AsyncSandbox",
    "AsyncSandboxNetwork",
    "AsyncSnapshot",
    "AsyncTerminal",
    "CellError",
    "ClearEvent",
    "Connection",
    "Copied",
    "Diff",
    "EngineClosed",
    "EngineLost",
    "Event",
    "ExecutionCancelled",
    "ExecutionUnknown",
    "ExitEvent",
    "Exposed",
    "FileChange",
    "FileError",
    "FileExists",
    "FileForbidden",
    "FileInfo",
    "FileIsFolder",
    "FileNotFolder",
    "FileNotFound",
    "FileState",
    "Files",
    "ForkFailed",
    "ForkInfo",
    "ForkedProcess",
    "Forks",
    "History",
    "HostNotCapable",
    "InvalidArgument",
    "Language",
    "LimitReached",
    "MergeConflict",
    "Limits",
    "Mount",
    "MissingCell",
    "NameChange",
    "NameUnknown",
    "NameValue",
    "Network",
    "NotPermitted",
    "OutcomeUnknown",
    "OutputEvent",
    "Point",
    "PointUnknown",
    "ProtocolError",
    "RametError",
    "ReplayEvent",
    "Result",
    "ResultEvent",
    "RichResult",
    "Sandbox",
    "SandboxClosed",
    "ImageInfo",
    "SandboxInfo",
    "SandboxLost",
    "SandboxNetwork",
    "SandboxRow",
    "Secret",
    "Snapshot",
    "Template",
    "Taken",
    "TemplateFailed",
    "Terminal",
    "TerminalInfo",
    "Tool",
    "ToolCall",
    "ToolCallRecord",
    "ToolError",
    "Truncated",
    "Unauthorized",
    "Undone",
    "Unreachable",
    "ValueUnsupported",
    "close_engine",
    "current_tool_call",
]
