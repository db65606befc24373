"""Copies files and whole folders between this machine and a sandbox, as steps that both faces carry out.

A sandbox's tree belongs to untrusted code and may change at any moment. So a download writes only below the local path,
whatever names it meets. It makes no links and follows none, takes regular files only, and bounds the number of entries,
the depth and the bytes. Links, devices, sockets and pipes are left out, and named in the result.

A sandbox may also change the local folder, if it has that as a writable mount. So everything below the local path is
opened relative to folders that are held open, with O_NOFOLLOW: a link that takes the place of a folder fails the copy.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from os import PathLike
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

from ramet.errors import LimitReached
from ramet.protocol.argument_errors import Words, kind_of, must
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.results import FileInfo

Opener: TypeAlias = Callable[[str, int], int]  # the argument `opener` of `open`

# Limits of one download or upload of a folder.
ENTRIES_AT_MOST = 100_000
LEVELS_AT_MOST = 100
# Limit of one download unless the caller gives another: a file may be far larger than it looks (sparse, or growing).
DOWNLOAD_BYTES_AT_MOST = 16 * 1024**3


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of an upload or a download.

    ``path``: the target. ``files``, ``size_bytes``: the number of files and their total size. ``left_out``: links,
    devices, sockets and pipes, which are not copied, as paths relative to the copied folder.
    """

    path: str
    files: int
    size_bytes: int
    left_out: tuple[str, ...] = ()


class StatPath(NamedTuple):
    """Ask for the FileInfo of a path of the sandbox."""

    path: str


class ListFolder(NamedTuple):
    """Ask for the entries of a folder of the sandbox, a list of FileInfo."""

    path: str


class SaveFile(NamedTuple):
    """Write a file of the sandbox to a local file. The driver answers with its size in bytes."""

    path: str
    target: PartialFile


class MakeFolder(NamedTuple):
    """Make a folder in the sandbox."""

    path: str


class SendFile(NamedTuple):
    """Write a local file to a path of the sandbox. The driver answers with its size in bytes."""

    source: str
    path: str
    opener: Opener | None = None


CopyStep: TypeAlias = StatPath | ListFolder | SaveFile | MakeFolder | SendFile
Copying: TypeAlias = Generator[CopyStep, Any, Copied]


class LocalFolder:
    """A local folder that is held open. Finds everything below it without following a link."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> LocalFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def folder(self, parts: tuple[str, ...], flags: int = os.O_PATH) -> int:
        """Open the folder with this path. The caller closes the descriptor."""
        current = os.open(".", flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._descriptor)
        for name in parts:
            try:
                deeper = os.open(name, flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            finally:
                os.close(current)
            current = deeper
        return current

    def make(self, parts: tuple[str, ...]) -> None:
        """Make a folder, or accept one that exists. Raises FileExistsError for a link, which may lead elsewhere."""
        above = self.folder(parts[:-1])
        try:
            os.mkdir(parts[-1], dir_fd=above)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode):
                raise
        finally:
            os.close(above)

    def entries(self, parts: tuple[str, ...], most: int) -> list[tuple[str, Literal["folder", "file", "other"]]]:
        """Return names and types of at most ``most`` entries of a folder, sorted."""
        folder = self.folder(parts, os.O_RDONLY)
        try:
            with os.scandir(folder) as found:
                return sorted((entry.name, _type_of(entry)) for entry in islice(found, most))
        finally:
            os.close(folder)

    def opener(self, parts: tuple[str, ...]) -> Opener:
        """Return an opener for a regular file."""

        def opened(name: str, flags: int) -> int:
            above = self.folder(parts[:-1])
            try:
                # Without O_NONBLOCK, opening a pipe would block until another process opens it for writing.
                descriptor = os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above)
            finally:
                os.close(above)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errno.EINVAL, "not a regular file", name)
            return descriptor

        return opened


def _type_of(entry: os.DirEntry[str]) -> Literal["folder", "file", "other"]:
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


class PartialFile:
    """A local file that is being downloaded: it gets its name once it is complete. Long runs of zeros become holes."""

    def __init__(self, path: str, left_bytes: int, open_folder: Callable[[], int] | None = None) -> None:
        """``open_folder`` opens the folder that the file goes to; without it the folder is found by the path."""
        self.path = path
        self._open_folder = open_folder
        self._name = os.path.basename(path)
        self._folder: int | None = None
        self.size_bytes = 0
        self._left_bytes = left_bytes
        self._part = ""
        self._file: BinaryIO | None = None

    def open(self) -> None:
        if self._open_folder is None:
            above = os.path.dirname(self.path) or "."
            self._folder = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            self._folder = self._open_folder()
        try:
            known = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            known = stat.S_IFREG
        if stat.S_ISDIR(known):
            raise IsADirectoryError(f"cannot write a file to {self.path!r}: it is a folder")
        if not stat.S_ISREG(known) and not stat.S_ISLNK(known):
            raise FileExistsError(f"cannot write a file to {self.path!r}: it is not a regular file")
        part = f".ramet-{os.urandom(8).hex()}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o666, dir_fd=self._folder)
        self._part = part
        self._file = os.fdopen(descriptor, "wb", buffering=0)

    def write(self, piece: bytes) -> None:
        assert self._file is not None
        self.size_bytes += len(piece)
        if self.size_bytes > self._left_bytes:
            raise too_much(self._left_bytes)
        if piece.count(0) == len(piece):
            self._file.seek(len(piece), os.SEEK_CUR)
            return
        rest = memoryview(piece)
        while rest:
            rest = rest[self._file.write(rest) :]

    def finish(self) -> None:
        assert self._file is not None
        self._file.truncate(self.size_bytes)
        self._file.close()
        os.replace(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._part = ""

    def leave(self) -> None:
        """Close everything, and remove the file unless it is complete."""
        if self._file is not None:
            self._file.close()
        if self._part:
            with suppress(FileNotFoundError):
                os.unlink(self._part, dir_fd=self._folder)
            self._part = ""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def too_much(most_bytes: int) -> LimitReached:
    return LimitReached(
        f"cannot download: there are more than {most_bytes} bytes",
        hint="download a part of it, or give max_bytes; a file with holes is as long as it says",
    )


# Downloads


def download(remote: str, local: str | PathLike[str], max_bytes: int) -> Copying:
    """Return the steps of a download. Raises InvalidArgument at once for arguments that are not allowed."""
    if not isinstance(local, str | PathLike):
        raise must("local_path", "be a path", Words(kind_of(local)))
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
        raise must("max_bytes", "be a whole number, 0 or more", max_bytes)
    return _download(remote, os.path.realpath(os.fsdecode(local)), max_bytes)


def _download(remote: str, local: str, max_bytes: int) -> Copying:
    found: FileInfo = yield StatPath(remote)
    if found.type != "folder":
        if os.path.isdir(local):
            local = os.path.join(local, _check_name(found.name))
        os.makedirs(os.path.dirname(local), exist_ok=True)
        if found.size_bytes > max_bytes:
            raise too_much(max_bytes)
        size_bytes: int = yield SaveFile(remote, PartialFile(local, max_bytes))
        return Copied(local, 1, size_bytes)
    os.makedirs(local, exist_ok=True)
    with LocalFolder(local) as below:
        return (yield from _download_folder(remote, local, below, max_bytes))


def _download_folder(remote: str, local: str, below: LocalFolder, max_bytes: int) -> Copying:
    entries = files = size_bytes = 0
    left_out: list[str] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        above = waiting.pop()
        listed: list[FileInfo] = yield ListFolder(_remote(remote, above))
        entries += len(listed)
        if entries > ENTRIES_AT_MOST:
            raise LimitReached(
                f"cannot download {remote!r}: it has more than {ENTRIES_AT_MOST} entries",
                hint="pack it in the sandbox (tar, zip) and download that file",
            )
        for entry in listed:
            here = (*above, _check_name(entry.name))
            if entry.type == "folder":
                _check_depth(remote, here)
                below.make(here)
                waiting.append(here)
            elif entry.type == "file":
                if size_bytes + entry.size_bytes > max_bytes:
                    raise too_much(max_bytes)
                target = PartialFile(os.path.join(local, *here), max_bytes - size_bytes, partial(below.folder, above))
                size_bytes += yield SaveFile(_remote(remote, here), target)
                files += 1
            else:
                left_out.append("/".join(here))
    return Copied(local, files, size_bytes, tuple(left_out))


def _remote(folder: str, parts: tuple[str, ...]) -> str:
    return "/".join((folder.rstrip("/") or "", *parts)) or "/"


def _check_name(name: str) -> str:
    """Return the name if it names one entry of a folder. No engine sends another, but this side does not trust that."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise must("remote_path", "have entries with ordinary names", name)
    return name


def _check_depth(folder: str, parts: tuple[str, ...]) -> None:
    if len(parts) > LEVELS_AT_MOST:
        raise LimitReached(
            f"cannot copy {folder!r}: it is more than {LEVELS_AT_MOST} folders deep",
            hint="pack it (tar, zip) and copy that file",
        )


# Uploads


def upload(local: str | PathLike[str], remote: str) -> Copying:
    """Yield the steps of an upload: of a file, or of a folder with everything in it."""
    source = os.fspath(local)
    if not os.path.isdir(source):
        size_bytes: int = yield SendFile(source, remote)
        return Copied(remote, 1, size_bytes)
    with LocalFolder(source) as below:
        return (yield from _upload_folder(source, below, remote))


def _upload_folder(source: str, below: LocalFolder, remote: str) -> Copying:
    entries = files = size_bytes = 0
    left_out: list[str] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        above = waiting.pop()
        yield MakeFolder(_remote(remote, above))
        for name, kind in below.entries(above, ENTRIES_AT_MOST + 1):
            entries += 1
            if entries > ENTRIES_AT_MOST:
                raise LimitReached(
                    f"cannot upload {source!r}: it has more than {ENTRIES_AT_MOST} entries",
                    hint="pack it (tar, zip), upload that file and unpack it in a cell",
                )
            here = (*above, name)
            if kind == "folder":
                _check_depth(source, here)
                waiting.append(here)
            elif kind == "file":
                local = os.path.join(source, *here)
                size_bytes += yield SendFile(local, _remote(remote, here), below.opener(here))
                files += 1
            else:
                left_out.append("/".join(here))
    return Copied(remote, files, size_bytes, tuple(left_out))


class CountedFile:
    """A local file that is being sent. Counts the bytes."""

    def __init__(self, source: str, opener: Opener | None = None) -> None:
        self._file = open(source, "rb", opener=opener)  # noqa: SIM115 - closed by __exit__
        self.size_bytes = 0

    def __enter__(self) -> CountedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        read: Callable[[int], bytes] = self._file.read
        while piece := read(piece_bytes):
            self.size_bytes += len(piece)
            yield piece
