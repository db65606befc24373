"""Every error Ramet raises, in one tree.

    RametError
    ├── InvalidArgument       an argument is not allowed; nothing was started      (also a ValueError)
    ├── HostNotCapable        this machine cannot build a wall that was asked for
    ├── LimitReached          no room for more: sandboxes, waiting cells, entries
    ├── TemplateFailed        the interpreter of a template did not boot
    ├── EngineLost            the engine ended without being asked to
    ├── EngineClosed          the engine was closed by its owner
    ├── SandboxClosed         the sandbox was closed, or its lifetime is over; details["cause"] says which
    ├── SandboxLost           the sandbox cannot run cells any more
    ├── ForkFailed            a sandbox could not be frozen, or its copy not thawed; it goes on itself
    ├── ExecutionCancelled    the call was given up before it had a result
    ├── ExecutionUnknown      no execution of this id, or none any more
    ├── OutcomeUnknown        the connection broke; the call may have been carried out
    ├── Unreachable           no server answers at the URL; nothing was carried out
    ├── Unauthorized          the server wants a key, or does not know this one
    ├── NotPermitted          more of the network than the key may have
    ├── NameUnknown           the sandbox has no such name                         (also a KeyError)
    ├── ValueUnsupported      a value of this type cannot travel                   (also a TypeError)
    ├── ToolError             raised by a tool, to tell the code that called it what went wrong
    ├── ForkedProcess         a handle was used in another process after os.fork()
    ├── ProtocolError         the other side broke the protocol
    └── FileError             a file operation in a sandbox failed                 (also an OSError, with errno)
        ├── FileNotFound      (also a FileNotFoundError)
        ├── FileExists        (also a FileExistsError)
        ├── FileIsFolder      (also an IsADirectoryError)
        ├── FileNotFolder     (also a NotADirectoryError)
        └── FileForbidden     (also a PermissionError)

A user's program that fails is a result, never one of these. Each error has a stable ``code``, and a ``hint`` where we
know a way out. Over a wire travel code, message, hint and details; the class is looked up here, in our own table.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping


class RametError(Exception):
    """Base of all errors of Ramet."""

    code = "error"

    def __init__(self, message: str, *, hint: str | None = None, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, object] = dict(details or {})

    def __str__(self) -> str:
        if self.hint is None:
            return self.message
        return f"{self.message}\n\nhint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (multiprocessing, concurrent.futures): keyword arguments must survive pickling.
        return _rebuild, (type(self), self.message, self.hint, self.details)


class InvalidArgument(RametError, ValueError):
    """An argument is not allowed. Nothing was started."""

    code = "invalid_argument"

    @property
    def argument(self) -> str:
        """The name of the argument."""
        return str(self.details.get("argument", ""))


class HostNotCapable(RametError):
    """This machine cannot build a wall that was asked for."""

    code = "host_not_capable"


class LimitReached(RametError):
    """There is no room for more of what was asked for."""

    code = "limit_reached"


class TemplateFailed(RametError):
    """The interpreter of a template did not boot, or a preload could not be imported."""

    code = "template_failed"


class EngineLost(RametError):
    """The engine ended without being asked to; its sandboxes ended with it."""

    code = "engine_lost"


class EngineClosed(RametError):
    """The engine was closed by its owner."""

    code = "engine_closed"


class SandboxClosed(RametError):
    """The sandbox was closed."""

    code = "sandbox_closed"


class SandboxLost(RametError):
    """The sandbox cannot run cells any more."""

    code = "sandbox_lost"


class ForkFailed(RametError):
    """A sandbox could not be frozen, or a copy of it not be thawed. Nothing was left behind, and it goes on itself."""

    code = "fork_failed"


class ExecutionCancelled(RametError):
    """A call was given up before it had a result."""

    code = "execution_cancelled"


class ExecutionUnknown(RametError):
    """There is no execution of this id, or its result is not kept any more."""

    code = "execution_unknown"


class OutcomeUnknown(RametError):
    """The connection broke after the call was sent: it may have been carried out, or may still be.

    For a cell, ``details["execution"]`` is the id that its result can be asked for with.
    """

    code = "outcome_unknown"


class Unreachable(RametError):
    """There is no server at the URL, or the way to it is barred. Nothing was carried out."""

    code = "unreachable"


class Unauthorized(RametError):
    """The server wants a key, or does not know the one that was given."""

    code = "unauthorized"


class NotPermitted(RametError):
    """More was asked for than whoever runs the server lets this key have."""

    code = "not_permitted"


class NameUnknown(RametError, KeyError):
    """No cell of the sandbox has defined this name, or it was deleted since."""

    code = "name_unknown"


class ValueUnsupported(RametError, TypeError):
    """A value of this type cannot be given to a sandbox, or taken out of one."""

    code = "value_unsupported"


class ToolError(RametError):
    """Raised by a tool of yours: the code that called it gets a ToolError with this message."""

    code = "tool_error"


class ForkedProcess(RametError):
    """A handle was used in another process than the one that made it."""

    code = "forked_process"


class ProtocolError(RametError):
    """The other side of a connection broke the protocol."""

    code = "protocol_error"


class FileError(RametError, OSError):
    """A file operation in a sandbox failed; ``errno`` says how, ``filename`` is the path in the sandbox."""

    code = "file_error"

    def __init__(self, message: str, *, hint: str | None = None, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message, hint=hint, details=details)
        number = self.details.get("errno")
        self.errno = number if isinstance(number, int) else errno.EIO
        self.strerror = os.strerror(self.errno)
        self.filename = self.details.get("path")


class FileNotFound(FileError, FileNotFoundError):
    """There is nothing at this path in the sandbox."""

    code = "file_not_found"


class FileExists(FileError, FileExistsError):
    """There is something at this path in the sandbox already."""

    code = "file_exists"


class FileIsFolder(FileError, IsADirectoryError):
    """The path in the sandbox is a folder."""

    code = "file_is_folder"


class FileNotFolder(FileError, NotADirectoryError):
    """A part of the path in the sandbox is not a folder."""

    code = "file_not_folder"


class FileForbidden(FileError, PermissionError):
    """The sandbox does not allow this at this path."""

    code = "file_forbidden"


# What the kernel says when there is no more of something: descriptors, memory, processes, mounts, watches; and when too
# many descriptors of a user are under way through sockets.
NO_ROOM_ERRNOS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.ENOBUFS, errno.ETOOMANYREFS)
)

_BY_ERRNO: dict[int, type[FileError]] = {
    errno.ENOENT: FileNotFound,
    errno.EEXIST: FileExists,
    errno.EISDIR: FileIsFolder,
    errno.ENOTDIR: FileNotFolder,
    errno.EACCES: FileForbidden,
    errno.EPERM: FileForbidden,
    errno.EROFS: FileForbidden,
}


def file_error(tried: str, path: str, number: int, *, hint: str | None = None) -> FileError:
    """The error for a failed system call on a path of a sandbox."""
    kind = _BY_ERRNO.get(number, FileError)
    message = f"cannot {tried} {path!r} in the sandbox: {os.strerror(number)}"
    return kind(message, hint=hint, details={"errno": number, "path": path})


def _all_below(kind: type[RametError]) -> list[type[RametError]]:
    below = [kind]
    for child in kind.__subclasses__():
        below.extend(_all_below(child))
    return below


_BY_CODE: dict[str, type[RametError]] = {kind.code: kind for kind in _all_below(RametError)}


def error_from_code(code: str, message: str, hint: str | None, details: Mapping[str, object]) -> RametError:
    """The error that another process described. An unknown code becomes a plain RametError."""
    return _BY_CODE.get(code, RametError)(message, hint=hint, details=details)


def _rebuild(kind: type[RametError], message: str, hint: str | None, details: Mapping[str, object]) -> RametError:
    return kind(message, hint=hint, details=details)
