"""Ramet: stateful Python sandboxes on any Linux machine.

    from ramet import Sandbox

    with Sandbox() as sandbox:
        sandbox.run_code("x = 6")
        print(sandbox.run_code("print(x * 7)").stdout)

Everything public is here and in ``ramet.errors``. Nothing inside the package imports this module.
"""

from ramet.client.arguments import Mount, Template
from ramet.client.async_forks import AsyncForks, AsyncSnapshot
from ramet.client.async_sandbox import AsyncFiles, AsyncSandbox
from ramet.client.forks import Forks, Snapshot
from ramet.client.sandbox import Files, Sandbox
from ramet.errors import (
    EngineClosed,
    EngineLost,
    ExecutionCancelled,
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
    ProtocolError,
    RametError,
    SandboxClosed,
    SandboxLost,
    TemplateFailed,
)
from ramet.protocol.differences import FileChange, FileState
from ramet.protocol.forks import Diff, ForkInfo, NameChange, NameValue
from ramet.protocol.results import (
    CellError,
    Event,
    ExitEvent,
    FileInfo,
    OutputEvent,
    Result,
    ResultEvent,
    RichResult,
    SandboxInfo,
    Truncated,
)
from ramet.protocol.specs import Limits
from ramet.transport.embedded import close_engine

__all__ = [
    "AsyncFiles",
    "AsyncForks",
    "AsyncSandbox",
    "AsyncSnapshot",
    "CellError",
    "Diff",
    "EngineClosed",
    "EngineLost",
    "Event",
    "ExecutionCancelled",
    "ExitEvent",
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
    "HostNotCapable",
    "InvalidArgument",
    "LimitReached",
    "Limits",
    "Mount",
    "NameChange",
    "NameValue",
    "OutputEvent",
    "ProtocolError",
    "RametError",
    "Result",
    "ResultEvent",
    "RichResult",
    "Sandbox",
    "SandboxClosed",
    "SandboxInfo",
    "SandboxLost",
    "Snapshot",
    "Template",
    "TemplateFailed",
    "Truncated",
    "close_engine",
]
