"""Ramet: stateful Python sandboxes on any Linux machine.

    from ramet import Sandbox

    with Sandbox() as sandbox:
        sandbox.run_code("x = 6")
        print(sandbox.run_code("print(x * 7)").stdout)

Everything public is here and in ``ramet.errors``. Nothing inside the package imports this module.
"""

from ramet.client.arguments import Mount, Template
from ramet.client.async_sandbox import AsyncFiles, AsyncSandbox
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
    HostNotCapable,
    InvalidArgument,
    LimitReached,
    ProtocolError,
    RametError,
    SandboxClosed,
    SandboxLost,
    TemplateFailed,
)
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
    "AsyncSandbox",
    "CellError",
    "EngineClosed",
    "EngineLost",
    "Event",
    "ExecutionCancelled",
    "ExitEvent",
    "FileError",
    "FileExists",
    "FileForbidden",
    "FileInfo",
    "FileIsFolder",
    "FileNotFolder",
    "FileNotFound",
    "Files",
    "ForkedProcess",
    "HostNotCapable",
    "InvalidArgument",
    "LimitReached",
    "Limits",
    "Mount",
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
    "Template",
    "TemplateFailed",
    "Truncated",
    "close_engine",
]
