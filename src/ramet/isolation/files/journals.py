"""Journals of sandboxes that are on disk: who has one, and what was done with it since its image was written.

    FOLDER/sandboxes/NAME     lines of JSON; the engine that has the sandbox holds a lock on the file

A journal has no MAC: it tells what is missing, and decides nothing. A crash may cost its last lines, never an image. It
begins anew by a rename: on a full disk the old one stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramet.errors import RametError

ALIVE_ELSEWHERE = "alive elsewhere"  # the cause that the refusal of a journal names
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_BYTES_AT_MOST = 4 << 20
_LONG_BYTES = 256 << 10  # after which cells that are in the image are removed from it
_CODE_CHARACTERS = 200
_CELLS_AT_MOST = 1000


@dataclass(frozen=True, slots=True)
class JournalLines:
    """What a journal says. ``about``: the row of its sandbox in lists, as its engine wrote it."""

    about: Mapping[str, object]
    cells: tuple[tuple[int, str], ...]  # number and code of those that were begun
    changes: tuple[tuple[int, str], ...]  # what was done with it besides, by number
    ended: bool  # its owner has closed the sandbox, or its lifetime was over


class JournalFile:
    """One that this engine has locked. Never fails a cell: what cannot be written down is not."""

    def __init__(self, folder: int, name: str, descriptor: int) -> None:
        self._folder = folder
        self._name = name
        self._descriptor = descriptor

    def __repr__(self) -> str:
        return f"<JournalFile {self._name}>"

    def introduce(self, about: Mapping[str, object]) -> None:
        """Begin anew, with the row of the sandbox."""
        self._begin_anew([{"sandbox": dict(about)}])

    def begun(self, cell_id: int, code: bytes) -> None:
        self._add({"cell": cell_id, "code": code[: 4 * _CODE_CHARACTERS].decode("utf-8", "replace")[:_CODE_CHARACTERS]})

    def changed(self, number: int, what: str) -> None:
        self._add({"change": number, "what": what[:_CODE_CHARACTERS]})

    def ended(self) -> None:
        self._add({"ended": True})

    def written(self, cells: int, changes: int) -> None:
        """An image has all cells up to this number, and all changes up to that one."""
        with contextlib.suppress(OSError):
            if os.fstat(self._descriptor).st_size > _LONG_BYTES:
                found = self.contents()
                lines: list[Mapping[str, object]] = [{"sandbox": dict(found.about)}]
                lines += [{"cell": cell_id, "code": code} for cell_id, code in found.cells if cell_id > cells]
                lines += [{"change": number, "what": what} for number, what in found.changes if number > changes]
                self._begin_anew(lines)

    def contents(self) -> JournalLines:
        return _parse(_read(self._descriptor))

    def _add(self, line: Mapping[str, object]) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, _encoded(line))

    def _begin_anew(self, lines: Sequence[Mapping[str, object]]) -> None:
        """Another file takes the place of this one, locked before it has the name: nobody finds it free in between."""
        if self._descriptor < 0:
            return
        data, temporary = b"".join(map(_encoded, lines)), f".{self._name}"
        try:
            descriptor = os.open(temporary, _FLAGS | os.O_TRUNC, 0o600, dir_fd=self._folder)
        except OSError:
            return  # the old one stays
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, "the disk is full")
            os.rename(temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._folder)
            return
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self, remove: bool = False) -> None:
        """Let go of the lock. Again is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if remove:  # while it is locked: nobody else believes to have it
                with contextlib.suppress(OSError):
                    os.unlink(self._name, dir_fd=self._folder)
            os.close(descriptor)


class Journals:
    """The folder of journals in a store, which several engines may use at once. Its methods block."""

    def __init__(self, store: int) -> None:
        """``store``: the folder of the store, which stays the caller's."""
        with contextlib.suppress(FileExistsError):
            os.mkdir("sandboxes", 0o700, dir_fd=store)
        self._folder = os.open("sandboxes", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=store)

    def open(self, name: str) -> JournalFile:
        """Lock a journal, made if need be. Raises RametError if another engine has it."""
        while True:
            descriptor = os.open(name, _FLAGS, 0o600, dir_fd=self._folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise RametError(
                    "the sandbox is alive in another engine",
                    hint="close it there first; it can be used by one program at a time",
                    details={"cause": ALIVE_ELSEWHERE},
                ) from None
            if os.fstat(descriptor).st_nlink:
                return JournalFile(self._folder, name, descriptor)
            os.close(descriptor)  # who had it has removed it meanwhile

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._folder) if not name.startswith("."))

    def look(self, name: str) -> tuple[JournalLines, bool] | None:
        """What a journal says, and whether an engine has it. None: there is none."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return None
        try:
            contents = _parse(_read(descriptor))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return contents, True
            return contents, False
        finally:
            os.close(descriptor)

    def close(self) -> None:
        os.close(self._folder)


def _encoded(line: Mapping[str, object]) -> bytes:
    return json.dumps(line).encode("ascii") + b"\n"


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, _BYTES_AT_MOST, 0)


def _parse(data: bytes) -> JournalLines:
    about: dict[str, object] = {}
    cells: dict[int, str] = {}
    changes: dict[int, str] = {}
    ended = False
    for line in data.splitlines():
        try:
            read = json.loads(line)
        except ValueError:
            continue  # the last line, when the machine went down
        if not isinstance(read, dict):
            continue
        if isinstance(read.get("sandbox"), dict):
            about, ended = read["sandbox"], False
        elif type(read.get("cell")) is int and isinstance(read.get("code"), str):
            cells[read["cell"]] = read["code"][:_CODE_CHARACTERS]
        elif type(read.get("change")) is int and isinstance(read.get("what"), str):
            changes[read["change"]] = read["what"][:_CODE_CHARACTERS]
        ended = ended or read.get("ended") is True
    newest = [tuple(sorted(found.items())[-_CELLS_AT_MOST:]) for found in (cells, changes)]
    return JournalLines(about, newest[0], newest[1], ended)
