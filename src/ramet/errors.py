"""All exceptions that Ramet raises, in one tree.

    RametError
    ├── InvalidArgument       an argument is not allowed; nothing was started      (also a ValueError)
    ├── HostNotCapable        this machine lacks a kernel feature that a sandbox needs
    ├── LimitReached          no room for more: sandboxes, waiting cells, entries
    ├── TemplateFailed        the interpreter of a template did not boot
    ├── EngineLost            the engine ended unexpectedly
    ├── EngineClosed          the engine was closed by its owner
    ├── SandboxClosed         the sandbox was closed, or its lifetime is over; details["cause"] says which
    ├── SandboxLost           the sandbox can run no more cells
    ├── ForkFailed            a sandbox could not be frozen, or its copy not thawed; the sandbox itself continues
    ├── MergeConflict         two sandboxes have changed the same names or files; nothing was taken
    ├── ExecutionCancelled    the call was given up before it had a result
    ├── ExecutionUnknown      no execution has this id, or its result is no longer kept
    ├── PointUnknown          the history of the sandbox has no such point, or its state is no longer kept
    ├── OutcomeUnknown        the connection broke; the call may have been carried out
    ├── Unreachable           no server answers at the URL; nothing was carried out
    ├── Unauthorized          the server requires a key, or does not know this one
    ├── NotPermitted          more of the network than the key allows
    ├── NameUnknown           the sandbox has no such name                         (also a KeyError)
    ├── ValueUnsupported      a value of this type cannot be transferred           (also a TypeError)
    ├── ToolError             for tools to raise: tells the code that called the tool what went wrong
    ├── ForkedProcess         a handle was used in another process after os.fork()
    ├── ProtocolError         the other side broke the protocol
    └── FileError             a file operation in a sandbox failed                 (also an OSError, with errno)
        ├── FileNotFound      (also a FileNotFoundError)
        ├── FileExists        (also a FileExistsError)
        ├── FileIsFolder      (also an IsADirectoryError)
        ├── FileNotFolder     (also a NotADirectoryError)
        └── FileForbidden     (also a PermissionError)

User code that fails is a result, never one of these. Each error has a stable ``code``, and a ``hint`` where Ramet knows
what to do. Code, message, hint and details travel over a connection; the receiver finds the class in its own table.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping


class RametError(Exception):
    """Base class of all Ramet errors.

    ``code`` is stable, ``message`` says what happened, ``hint`` says what to do or is None, and ``details`` has facts
    for programs. Errors can be pickled.
    """

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
        # Errors cross process boundaries (multiprocessing, concurrent.futures), so keyword arguments must survive
        # pickling.
        return _rebuild, (type(self), self.message, self.hint, self.details)


class InvalidArgument(RametError, ValueError):
    """An argument is not allowed; ``argument`` is its name. Nothing was started.

    Correct the argument; the message says what it must be.
    """

    code = "invalid_argument"

    @property
    def argument(self) -> str:
        """The name of the wrong argument."""
        return str(self.details.get("argument", ""))


class HostNotCapable(RametError):
    """This machine lacks a kernel feature or permission that a sandbox needs.

    The hint says how to enable it; ``ramet doctor`` checks all of them. Ramet never makes a weaker sandbox instead.
    """

    code = "host_not_capable"


class LimitReached(RametError):
    """There is no room for another sandbox, waiting cell, connection or entry.

    Close what you no longer need or wait for running calls to end, then try again; or raise the limit that the message
    names.
    """

    code = "limit_reached"


class TemplateFailed(RametError):
    """The interpreter of a template did not boot, or a module of ``preload`` could not be imported.

    The message contains its output. Fix the environment or the list of modules.
    """

    code = "template_failed"


class EngineLost(RametError):
    """The engine ended unexpectedly, and its sandboxes with it.

    The message contains its exit code and last output. The next ``Sandbox()`` starts another engine.
    """

    code = "engine_lost"


class EngineClosed(RametError):
    """Your program closed the engine, and its sandboxes with it. The next ``Sandbox()`` starts another one."""

    code = "engine_closed"


class SandboxClosed(RametError):
    """The sandbox or snapshot was closed, was merged into another, or reached the end of its lifetime.

    ``details["cause"]`` says which. Make a new sandbox; to keep one longer, give it a longer lifetime.
    """

    code = "sandbox_closed"


class SandboxLost(RametError):
    """The sandbox can run no more cells: its REPL does not answer, or no fresh one could be made.

    Make a new sandbox.
    """

    code = "sandbox_lost"


class ForkFailed(RametError):
    """A sandbox could not be frozen, or a copy of it could not be thawed.

    Nothing was left behind, and the sandbox itself continues. The message says what stood in the way.
    """

    code = "fork_failed"


class MergeConflict(RametError):
    """Two sandboxes have changed the same names or files since they were one. Nothing was taken.

    ``names`` and ``files`` list them, up to 200 of each; ``details["count"]`` counts all. Or ask with ``prefer``.
    """

    code = "merge_conflict"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that both have changed."""
        return _texts(self.details.get("names"))

    @property
    def files(self) -> tuple[str, ...]:
        """The paths that both have changed."""
        return _texts(self.details.get("files"))


class ExecutionCancelled(RametError):
    """The call was given up before it had a result."""

    code = "execution_cancelled"


class ExecutionUnknown(RametError):
    """No execution has this id, or its result is no longer kept."""

    code = "execution_unknown"


class PointUnknown(RametError):
    """The history of the sandbox has no such point, or the state after it is not kept.

    ``details["nearest"]`` is the id of the nearest kept point before it, or None.
    """

    code = "point_unknown"


class OutcomeUnknown(RametError):
    """The connection broke after the call was sent: the server may have carried it out, or may still do so.

    For a cell, ``details["execution"]`` is its id: ``sandbox.result(id)`` waits for its result. For other calls, check
    the state of the sandbox before you repeat them.
    """

    code = "outcome_unknown"


class Unreachable(RametError):
    """No server answers at the URL, or the connection is blocked.

    Nothing was carried out, so the call can be repeated safely. Check the URL and that ``ramet serve`` runs there.
    """

    code = "unreachable"


class Unauthorized(RametError):
    """The server requires a key, or does not know the one that was given.

    Pass ``api_key=`` or set RAMET_API_KEY to a key that the operator made with ``ramet keys create``.
    """

    code = "unauthorized"


class NotPermitted(RametError):
    """More was asked for than the server allows this key.

    The message names it; the operator can change the key's limits.
    """

    code = "not_permitted"


class NameUnknown(RametError, KeyError):
    """The sandbox has no such name: no cell has defined it, or it was deleted since."""

    code = "name_unknown"


class ValueUnsupported(RametError, TypeError):
    """A value of this type cannot be set in a sandbox or read from one. The message names the type and its place."""

    code = "value_unsupported"


class ToolError(RametError):
    """For your tools to raise: the code that called the tool gets a ToolError with this message."""

    code = "tool_error"


class ForkedProcess(RametError):
    """A handle was used in another process than the one that made it. Make a new ``Sandbox()`` in the child process."""

    code = "forked_process"


class ProtocolError(RametError):
    """The other side of a connection broke the protocol: a bug, or two versions of Ramet that do not match."""

    code = "protocol_error"


class FileError(RametError, OSError):
    """A file operation in a sandbox failed. ``errno`` has the cause, ``filename`` is the path in the sandbox."""

    code = "file_error"

    def __init__(self, message: str, *, hint: str | None = None, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message, hint=hint, details=details)
        number = self.details.get("errno")
        self.errno = number if isinstance(number, int) else errno.EIO
        self.strerror = os.strerror(self.errno)
        self.filename = self.details.get("path")


class FileNotFound(FileError, FileNotFoundError):
    """Nothing exists at this path in the sandbox."""

    code = "file_not_found"


class FileExists(FileError, FileExistsError):
    """Something already exists at this path in the sandbox."""

    code = "file_exists"


class FileIsFolder(FileError, IsADirectoryError):
    """The path in the sandbox is a folder, and a file is needed."""

    code = "file_is_folder"


class FileNotFolder(FileError, NotADirectoryError):
    """A part of the path in the sandbox is not a folder."""

    code = "file_not_folder"


class FileForbidden(FileError, PermissionError):
    """The sandbox does not permit this operation at this path."""

    code = "file_forbidden"


# Errors by which the kernel reports that something is used up: descriptors, memory, processes, mounts, watches, or the
# number of descriptors that a user may have in flight through sockets.
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
    """Return the error for a failed system call on a path in a sandbox."""
    kind = _BY_ERRNO.get(number, FileError)
    message = f"cannot {tried} {path!r} in the sandbox: {os.strerror(number)}"
    return kind(message, hint=hint, details={"errno": number, "path": path})


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list | tuple) else ()


def _all_below(kind: type[RametError]) -> list[type[RametError]]:
    below = [kind]
    for child in kind.__subclasses__():
        below.extend(_all_below(child))
    return below


_BY_CODE: dict[str, type[RametError]] = {kind.code: kind for kind in _all_below(RametError)}


def error_from_code(code: str, message: str, hint: str | None, details: Mapping[str, object]) -> RametError:
    """Return the error that another process described. An unknown code becomes a plain RametError."""
    return _BY_CODE.get(code, RametError)(message, hint=hint, details=details)


def _rebuild(kind: type[RametError], message: str, hint: str | None, details: Mapping[str, object]) -> RametError:
    return kind(message, hint=hint, details=details)
