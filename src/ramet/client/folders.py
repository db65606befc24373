"""Files and whole folders, copied between this machine and a sandbox: which steps that takes, for both faces alike.

A sandbox's tree belongs to code that nobody trusts and may change at any moment. So a download writes below the local
path only, whatever names it meets, makes no links and follows none, takes regular files only, and has bounds for how
many, how deep and how long. Links, devices, sockets and pipes are left out, and named in the result.

Here, too, a sandbox may be at work, in a folder that it was given as a writable mount. Everything below the local path
is therefore found from folders that are held open, and a link that takes the place of one leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from os import PathLike
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

from ramet.errors import LimitReached
from ramet.protocol.refusing import Words, kind_of, must
from ramet.protocol.results import FileInfo

Opener: TypeAlias = Callable[[str, int], int]  # as `open` takes it

# Of one download or upload of a folder.
ENTRIES_AT_MOST = 100_000
LEVELS_AT_MOST = 100
# Of one download, unless more is asked for: a file may be far larger than it looks (sparse, or growing).
DOWNLOAD_BYTES_AT_MOST = 16 * 1024**3


@dataclass(frozen=True, slots=True)
class Copied:
    """What an upload or a download has copied.

    ``path``: where to. ``files``, ``size_bytes``: how many files, and how much they hold. ``left_out``: paths, relative
    to the folder that was copied, of links, devices, sockets and pipes, which are not copied.
    """

    path: str
    files: int
    size_bytes: int
    left_out: tuple[str, ...] = ()


class Stat(NamedTuple):
    """Look at a path of the sandbox. Gives a FileInfo."""

    path: str


class List(NamedTuple):
    """List a folder of the sandbox. Gives a list of FileInfo."""

    path: str


class Save(NamedTuple):
    """Write a file of the sandbox to a local path. Gives how many bytes it had."""

    path: str
    landing: Landing


class MakeFolder(NamedTuple):
    """Make a folder in the sandbox."""

    path: str


class Send(NamedTuple):
    """Write a local file to a path of the sandbox. Gives how many bytes it had."""

    source: str
    path: str
    opener: Opener | None = None


Step: TypeAlias = Stat | List | Save | MakeFolder | Send
Copying: TypeAlias = Generator[Step, Any, Copied]


class Below:
    """A local folder that is held open, and the way from it to what is below it: never through a link."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Below:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def folder(self, parts: tuple[str, ...], flags: int = os.O_PATH) -> int:
        """A descriptor of the folder with this path, to be closed."""
        current = os.open(".", flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._descriptor)
        for name in parts:
            try:
                deeper = os.open(name, flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            finally:
                os.close(current)
            current = deeper
        return current

    def make(self, parts: tuple[str, ...]) -> None:
        """A folder, made or found; a link to one would lead out of where the download goes."""
        above = self.folder(parts[:-1])
        try:
            os.mkdir(parts[-1], dir_fd=above)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode):
                raise
        finally:
            os.close(above)

    def entries(self, parts: tuple[str, ...], most: int) -> list[tuple[str, Literal["folder", "file", "other"]]]:
        """Names and types of what is in a folder, sorted; not many more than ``most``."""
        folder = self.folder(parts, os.O_RDONLY)
        try:
            with os.scandir(folder) as found:
                return sorted((entry.name, _type_of(entry)) for entry in islice(found, most))
        finally:
            os.close(folder)

    def opener(self, parts: tuple[str, ...]) -> Opener:
        """Opens a regular file to read it."""

        def opened(name: str, flags: int) -> int:
            above = self.folder(parts[:-1])
            try:
                # A pipe would wait for somebody to write to it.
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


class Landing:
    """A local file on its way: it has its name once it is whole. Long runs of zeros become holes."""

    def __init__(self, path: str, left_bytes: int, open_folder: Callable[[], int] | None = None) -> None:
        """``open_folder``: gives a descriptor of the folder that the file goes to, else it is found by the path."""
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
        """Whether it is whole or not: nothing but the file itself stays behind."""
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
    """The steps of a download. Arguments are checked at once."""
    if not isinstance(local, str | PathLike):
        raise must("local_path", "be a path", Words(kind_of(local)))
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
        raise must("max_bytes", "be a whole number, 0 or more", max_bytes)
    return _download(remote, os.path.realpath(os.fsdecode(local)), max_bytes)


def _download(remote: str, local: str, max_bytes: int) -> Copying:
    found: FileInfo = yield Stat(remote)
    if found.type != "folder":
        if os.path.isdir(local):
            local = os.path.join(local, _checked_name(found.name))
        os.makedirs(os.path.dirname(local), exist_ok=True)
        if found.size_bytes > max_bytes:
            raise too_much(max_bytes)
        size_bytes: int = yield Save(remote, Landing(local, max_bytes))
        return Copied(local, 1, size_bytes)
    os.makedirs(local, exist_ok=True)
    with Below(local) as below:
        return (yield from _download_folder(remote, local, below, max_bytes))


def _download_folder(remote: str, local: str, below: Below, max_bytes: int) -> Copying:
    entries = files = size_bytes = 0
    left_out: list[str] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        above = waiting.pop()
        listed: list[FileInfo] = yield List(_remote(remote, above))
        entries += len(listed)
        if entries > ENTRIES_AT_MOST:
            raise LimitReached(
                f"cannot download {remote!r}: it has more than {ENTRIES_AT_MOST} entries",
                hint="pack it in the sandbox (tar, zip) and download that file",
            )
        for entry in listed:
            here = (*above, _checked_name(entry.name))
            target = os.path.join(local, *here)
            if entry.type == "folder":
                _check_depth(remote, here)
                below.make(here)
                waiting.append(here)
            elif entry.type == "file":
                if size_bytes + entry.size_bytes > max_bytes:
                    raise too_much(max_bytes)
                landing = Landing(target, max_bytes - size_bytes, partial(below.folder, above))
                size_bytes += yield Save(_remote(remote, here), landing)
                files += 1
            else:
                left_out.append("/".join(here))
    return Copied(local, files, size_bytes, tuple(left_out))


def _remote(folder: str, parts: tuple[str, ...]) -> str:
    return "/".join((folder.rstrip("/") or "", *parts)) or "/"


def _checked_name(name: str) -> str:
    """A name of one entry; an engine tells no other, but it is not this side's to trust that."""
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
    """The steps of an upload: a file, or a folder with all that is in it."""
    source = os.fspath(local)
    if not os.path.isdir(source):
        size_bytes: int = yield Send(source, remote)
        return Copied(remote, 1, size_bytes)
    with Below(source) as below:
        return (yield from _upload_folder(source, below, remote))


def _upload_folder(source: str, below: Below, remote: str) -> Copying:
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
                size_bytes += yield Send(local, _remote(remote, here), below.opener(here))
                files += 1
            else:
                left_out.append("/".join(here))
    return Copied(remote, files, size_bytes, tuple(left_out))


class Counted:
    """A local file that is being sent, and how much of it was."""

    def __init__(self, source: str, opener: Opener | None = None) -> None:
        self._file = open(source, "rb", opener=opener)  # noqa: SIM115 - closed by __exit__
        self.size_bytes = 0

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        read: Callable[[int], bytes] = self._file.read
        while piece := read(piece_bytes):
            self.size_bytes += len(piece)
            yield piece
