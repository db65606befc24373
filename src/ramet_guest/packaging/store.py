"""Asks the engine's store for packages and copies them into this sandbox's own folders.

The engine answers over a unix socket with lines of JSON and finally with a folder: the descriptor of a read-only mount
that is not attached anywhere. Works in a bare interpreter; see `pip_program.py`.
"""

from __future__ import annotations

import os
from _socket import AF_UNIX, CMSG_LEN, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

from ramet_guest.packaging import distributions
from ramet_guest.tools import json_reader
from ramet_guest.wire import PACKAGES_SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ADDRESS = b"\0" + PACKAGES_SOCKET.encode()
_READ_BYTES = 65536
_DESCRIPTOR_BYTES = 4
_IN_PIECES_BYTES = 1 << 30
_SMALL_BYTES = 1 << 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Unavailable(Exception):
    """Raised when the engine cannot help; pip itself may."""


class IndexRefused(Unavailable):
    """Raised when the sandbox's rules allow no index. The message names the index and says what to do."""


class Given:
    """The engine's answer: a folder and its description."""

    def __init__(self, about: dict[str, Any], folder: int) -> None:
        self.base: dict[str, str] = about["base"]  # packages that existed where it was made
        self.added: dict[str, str] = about["added"]  # packages that it contains
        self.folder = folder


def is_there(address: bytes = ADDRESS) -> bool:
    """Whether the store answers at all."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.connect(address)
        return True
    except OSError:
        return False
    finally:
        connection.close()


def ask(request: dict[str, Any], on_line: Callable[[str], None], address: bytes = ADDRESS) -> Given:
    """Asks for packages. Passes each line of progress to `on_line`. Raises Unavailable."""
    text = json_reader.compact_writer(str)(request) + "\n"
    connection = socket(AF_UNIX, SOCK_STREAM)
    descriptors: list[int] = []
    try:
        connection.connect(address)
        connection.sendall(text.encode())
        about = read_answers(connection, descriptors, on_line)
        if len(descriptors) != 1:
            raise Unavailable("there was no folder in the engine's answer")
        given = Given(about, descriptors[0])
        descriptors.clear()
        return given
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Unavailable(f"the engine gave no answer: {error}") from None
    finally:
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)


def read_answers(connection: socket, descriptors: list[int], on_line: Callable[[str], None]) -> dict[str, Any]:
    """Reads answers and descriptors up to the last answer, and returns that one."""
    waiting = b""
    while True:
        data, extra, _, _ = connection.recvmsg(_READ_BYTES, CMSG_LEN(_DESCRIPTOR_BYTES))
        for level, kind, content in extra:
            if level == SOL_SOCKET and kind == SCM_RIGHTS:
                descriptors.append(int.from_bytes(content[:_DESCRIPTOR_BYTES], "little"))
        if not data:
            raise Unavailable("the engine closed the connection")
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            answer = json_reader.read(line.decode())
            if not isinstance(answer, dict):
                raise Unavailable("the engine's answer was not understood")
            if "line" in answer:
                on_line(answer["line"])
            elif "given" in answer:
                given: dict[str, Any] = answer["given"]
                return given
            elif answer.get("refused"):
                raise IndexRefused(answer["why"])
            else:
                raise Unavailable(answer.get("why", ""))


def fits(given: Given, installed: dict[str, str]) -> bool:
    """Whether pip would have come to the same result here as where the folder was made."""
    for name, version in given.base.items():
        if installed.get(name) != version and installed.get(name) != given.added.get(name, version):
            return False
    return all(
        name not in installed or name in given.base or installed[name] == version
        for name, version in given.added.items()
    )


class Copying:
    """Copies a folder over another: the packages first, then their metadata.

    Metadata declares a package installed, so that an aborted copy does not look complete.
    """

    def __init__(self, leave_out: set[str]) -> None:
        self._leave_out = leave_out  # paths relative to the folder
        self._last: list[tuple[str, str]] = []

    def copy(self, folder: int, target: str) -> None:
        top = os.open(".", _FOLDER, dir_fd=folder)
        try:
            self._copy_folder(top, target, "")
            for path, to in self._last:
                source = os.open(path, _FOLDER, dir_fd=top)
                try:
                    os.makedirs(to, exist_ok=True)
                    self._copy_folder(source, to, f"{path}/")
                finally:
                    os.close(source)
        finally:
            os.close(top)

    def _copy_folder(self, source: int, target: str, path: str) -> None:
        inner: list[str] = []
        to = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(source) as entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        inner.append(name)
                    elif path + name not in self._leave_out:
                        copy_file(source, to, name)
        finally:
            os.close(to)
        for name in inner:
            at = f"{target}/{name}"
            # Metadata declares a package installed, so it is copied last.
            if name.endswith(".dist-info") and path.endswith("-packages/"):
                if not any(left.startswith(f"{path}{name}/") for left in self._leave_out):
                    self._last.append((path + name, at))
                continue
            child = os.open(name, _FOLDER, dir_fd=source)
            try:
                if not os.path.isdir(at):
                    os.mkdir(at)
                self._copy_folder(child, at, f"{path}{name}/")
            finally:
                os.close(child)


def copy_file(source: int, target: int, name: str) -> None:
    from_file = os.open(name, _TO_READ, dir_fd=source)
    try:
        about = os.fstat(from_file)
        mode = 0o755 if about.st_mode & 0o100 else 0o644
        try:
            to_file = os.open(name, _NEW, mode, dir_fd=target)
        except FileExistsError:
            # Replaced, not overwritten: a process may have the old file mapped.
            os.unlink(name, dir_fd=target)
            to_file = os.open(name, _NEW, mode, dir_fd=target)
        try:
            left = about.st_size
            if left <= _SMALL_BYTES:
                os.write(to_file, os.read(from_file, left))
            else:
                while left > 0:
                    sent = os.sendfile(to_file, from_file, None, min(left, _IN_PIECES_BYTES))
                    if sent == 0:
                        raise OSError(f"{name} ended too soon")
                    left -= sent
            if name.endswith(".py"):  # the compiled file is valid only for this time
                os.utime(to_file, ns=(about.st_mtime_ns, about.st_mtime_ns))
        finally:
            os.close(to_file)
    finally:
        os.close(from_file)


def files_of(folder: int, names: set[str]) -> set[str]:
    """Returns the paths, relative to the folder, of the files of these packages."""
    found: set[str] = set()
    library = os.open(distributions.LIBRARY, _FOLDER, dir_fd=folder)
    try:
        for entry in os.listdir(library):
            known = distributions.of_entry(entry)
            if known is None or known[0] not in names:
                continue
            record = os.open(f"{entry}/RECORD", _TO_READ, dir_fd=library)
            with open(record, encoding="utf-8") as lines:
                for line in lines:
                    path = line.rsplit(",", 2)[0].strip('"')
                    found.add(os.path.normpath(f"{distributions.LIBRARY}/{path}"))
    finally:
        os.close(library)
    return found
