"""Copies files and folders into a sandbox and out of it. Untrusted code wrote whatever comes out.

So names are checked, and files are written relative to folders that are held open: neither a name nor a link at the
target leads elsewhere. Links, sockets and other special files are left out, and the amount is limited.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple

from ramet.cli.output import show_progress, shown, size
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import FileError, InvalidArgument, LimitReached, RametError
from ramet.protocol.values.results import FileInfo

PIECE_BYTES = 1024 * 1024
FILES_AT_MOST = 100_000
DEEP_AT_MOST = 64
MIB = 1024 * 1024


@dataclass
class CopyTally:
    """How much was copied, how much may be, and what was left out and why."""

    bytes_at_most: int
    files_at_most: int = FILES_AT_MOST
    files: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bytes: int = 0

    def check_file(self, name: str, size_bytes: int) -> None:
        """Raise LimitReached if there is no room for a file. Called before it is read."""
        if len(self.files) >= self.files_at_most:
            raise LimitReached(
                f"there are more than {self.files_at_most} files", hint="copy a part of them, or archive them"
            )
        self.check_bytes(name, size_bytes)

    def check_bytes(self, name: str, more: int) -> None:
        if self.bytes + more > self.bytes_at_most:
            raise LimitReached(
                f"{shown(name)} would make it more than {size(self.bytes_at_most)}",
                hint="ramet cp --max-mib N allows more",
                details={"limit": "bytes"},
            )


# Into a sandbox


def upload(sandbox: Sandbox, local: str, remote: str, copied: CopyTally) -> None:
    """Upload a file, or a folder with everything in it except links."""
    if os.path.isdir(local):
        sandbox.files.mkdir(remote)
        for entry in sorted(_scan(local), key=lambda one: one.name):
            target = f"{remote.rstrip('/')}/{entry.name}"
            if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                copied.left_out.append(f"{entry.path} (no file or folder)")
            else:
                upload(sandbox, entry.path, target, copied)
    else:
        with reading(local) as file:
            upload_open(sandbox, file, local, remote, copied)


def upload_open(sandbox: Sandbox, file: BinaryIO, name: str, remote: str, copied: CopyTally) -> None:
    total = os.fstat(file.fileno()).st_size
    copied.check_file(name, total)
    try:
        sandbox.files.write(remote, _pieces(file, name, total, copied))
    finally:
        show_progress("")
    copied.files.append(remote)


@contextmanager
def reading(local: str, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a local file, through a link unless ``follow`` is false.

    Errors of opening are reported in our words; others pass.
    """
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        file = os.fdopen(descriptor, "rb")
    except OSError as error:
        raise InvalidArgument(f"cannot read {shown(local)}: {error.strerror}") from error
    with file:
        if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
            raise InvalidArgument(f"cannot read {shown(local)}: it is a folder")
        yield file


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise InvalidArgument(f"cannot read {shown(folder)}: {error.strerror}") from error


def _pieces(file: BinaryIO, name: str, total: int, copied: CopyTally) -> Iterator[bytes]:
    """Yield the file in pieces and show the progress."""
    sent = 0
    while piece := file.read(PIECE_BYTES):
        copied.check_bytes(name, len(piece))
        copied.bytes += len(piece)
        yield piece
        sent += len(piece)
        show_progress(f"{shown(name)}: {size(sent)} of {size(total)}")


# Out of a sandbox


class SandboxEntry(NamedTuple):
    """A file or folder of a sandbox, by its path relative to the folder that is walked."""

    path: str
    info: FileInfo


def walk(sandbox: Sandbox, folder: str, copied: CopyTally, hidden: bool = True) -> Iterator[SandboxEntry]:
    """Yield all files and folders below a folder, each folder before its contents. ``hidden``: include dot files."""
    seen = 0
    waiting = [""]
    while waiting:
        below = waiting.pop()
        for info in sandbox.files.list(_join(folder, below)):
            path = _join(below, info.name)
            seen += 1
            if seen > copied.files_at_most:
                raise LimitReached(
                    f"{shown(folder)} has more than {copied.files_at_most} entries", hint="copy a part of them"
                )
            if not hidden and (info.name.startswith(".") or info.name == "__pycache__"):
                continue
            if info.type not in ("file", "folder") or not is_name(info.name) or path.count("/") >= DEEP_AT_MOST:
                copied.left_out.append(path)
                continue
            yield SandboxEntry(path, info)
            if info.type == "folder":
                waiting.append(path)


def is_name(name: str) -> bool:
    """Whether this may be a file name here: one component, printable, valid UTF-8."""
    return (
        name not in ("", ".", "..")
        and "/" not in name
        and name.isprintable()
        and len(name.encode("utf-8", "replace")) < 256
    )


def download(sandbox: Sandbox, remote: str, local: str, copied: CopyTally) -> None:
    """Download a file to a path, or a folder's contents to a folder, which is made."""
    info = sandbox.files.stat(remote)
    if info.type == "file":
        target = os.path.realpath(local)
        with opened_folder(os.path.dirname(target)) as folder:
            fetch(sandbox, remote, info, folder, os.path.basename(target), copied)
    elif info.type == "folder":
        make_folder(local)
        with opened_folder(local) as folder:
            for entry in walk(sandbox, remote, copied):
                fetch_below(sandbox, _join(remote, entry.path), entry, folder, copied)
    else:
        raise InvalidArgument(f"{shown(remote)} in the sandbox is neither a file nor a folder")


def fetch_below(sandbox: Sandbox, remote: str, entry: SandboxEntry, folder: int, copied: CopyTally) -> None:
    """Fetch one entry of a walk to its place below an open folder."""
    above, name = PurePosixPath(entry.path).parts[:-1], PurePosixPath(entry.path).name
    with _below(folder, above) as parent:
        if entry.info.type == "folder":
            with _telling(entry.path), suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
        else:
            fetch(sandbox, remote, entry.info, parent, name, copied)


def fetch(sandbox: Sandbox, remote: str, info: FileInfo, folder: int, name: str, copied: CopyTally) -> None:
    """Fetch a file into an open folder. It appears there whole, by a rename, or not at all."""
    copied.check_file(remote, info.size_bytes)
    part = f".{os.urandom(8).hex()}.part"
    with _telling(name):
        descriptor = os.open(
            part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder
        )
    try:
        received = 0
        with os.fdopen(descriptor, "wb") as file:
            for piece in sandbox.files.read_stream(remote):
                # Counted as it arrives: a file may grow while it is read.
                copied.check_bytes(remote, len(piece))
                copied.bytes += len(piece)
                received += len(piece)
                with _telling(name):
                    file.write(piece)
                show_progress(f"{shown(remote)}: {size(received)} of {size(info.size_bytes)}")
            with _telling(name):
                file.flush()
                os.fchmod(file.fileno(), _mode(info.mode))
        with _telling(name):
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise
    finally:
        show_progress("")
    copied.files.append(remote)


def _mode(mode: int) -> int:
    """Return the mode for a new file: keeps permission to execute, within the umask; drops set-user-id."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask | (0o111 & ~mask if mode & 0o100 else 0)


@contextmanager
def opened_folder(path: str) -> Iterator[int]:
    """Open a folder of this machine. The user named it, so links on the way to it are followed."""
    try:
        descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgument(f"cannot write to {shown(path or '.')}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"cannot make the folder {shown(path)}: {error.strerror}") from error


@contextmanager
def _below(folder: int, names: tuple[str, ...]) -> Iterator[int]:
    """Open a folder below an open one, and make it if it is missing; never through a link."""
    current = os.dup(folder)
    try:
        for name in names:
            with _telling(name):
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=current)
                deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = deeper
        yield current
    finally:
        os.close(current)


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Convert errors of this machine to ours. Errors of the sandbox already are."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise RametError(f"cannot write {shown(name)}: {error.strerror}") from error


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if folder and name else folder or name
