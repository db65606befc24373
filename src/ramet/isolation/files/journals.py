"""Journals of sandboxes that are on disk: who has one, and what was done with it since its image was written.

    FOLDER/sandboxes/NAME     lines of JSON; the engine that has the sandbox holds a lock on the file

A journal has no MAC. It says which sandboxes there are, when they end, and what is missing after a crash: whoever can
write it has the rights of its owner already. A crash may cost its last lines, never an image. Lines are added, or
another file takes its place by a rename: on a full disk the old one stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ramet.errors import RametError

ALIVE_ELSEWHERE = "alive elsewhere"  # the cause that the refusal of a journal names
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_BYTES_AT_MOST = 4 << 20
_LONG_BYTES = 256 << 10  # after which cells that are in the image are removed from it
_FULL_BYTES = 1 << 20  # after which the oldest cells are, too
_CODE_CHARACTERS = 200
_CELLS_AT_MOST = 1000
_ATTEMPTS = 10  # to lock a journal
_ATTEMPT_SECONDS = 0.005


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
        self._size = os.fstat(descriptor).st_size
        self._synced = False

    def __repr__(self) -> str:
        return f"<JournalFile {self._name}>"

    def introduce(self, about: Mapping[str, object]) -> None:
        """What the sandbox is from now on. Added to what is there: a full disk or a crash costs nothing of that."""
        self._synced = False
        self._add(_line({"sandbox": dict(about)}))

    def begun(self, cell_id: int, code: bytes) -> None:
        self._add(_cell_line(cell_id, code[: 4 * _CODE_CHARACTERS].decode("utf-8", "replace")[:_CODE_CHARACTERS]))

    def changed(self, number: int, what: str) -> None:
        self._add(_change_line(number, what[:_CODE_CHARACTERS]))

    def ended(self) -> None:
        self._synced = False
        self._add(_line({"ended": True}))

    def written(self, cells: int, changes: int) -> None:
        """An image has all cells up to this number, and all changes up to that one."""
        if self._size > _LONG_BYTES:
            self._shorten(cells, changes)

    def sync(self) -> None:
        """Wait until what the sandbox is has reached the disk: without it, nobody would find its image. Blocks."""
        if not self._synced and self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)
                os.fsync(self._folder)
                self._synced = True

    def contents(self) -> JournalLines:
        return _parse(_read(self._descriptor))

    def _shorten(self, cells: int, changes: int) -> None:
        """Leave out cells and changes up to these numbers, and of many the oldest."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            found = self.contents()
            lines = [_line({"sandbox": dict(found.about)})] if found.about else []
            lines += _newest(_change_line(*change) for change in reversed(found.changes) if change[0] > changes)
            lines += _newest(_cell_line(*cell) for cell in reversed(found.cells) if cell[0] > cells)
            self._exchange(b"".join([*lines, _line({"ended": True})] if found.ended else lines))

    def _exchange(self, data: bytes) -> None:
        """Put another file in the place of this one, by a rename: a crash leaves the one or the other, whole."""
        temporary = f".{self._name}"  # nobody else writes it: that takes the lock
        made = os.open(temporary, _FLAGS | os.O_TRUNC, 0o600, dir_fd=self._folder)
        try:
            # Locked before it has the name. Who has opened the old one sees that it has no name any more.
            fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.write(made, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.rename(temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            os.close(made)
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._folder)
            raise
        os.close(self._descriptor)
        self._descriptor, self._size, self._synced = made, len(data), False

    def _add(self, line: bytes) -> None:
        if self._size > _FULL_BYTES:  # no image has been written for long
            self._shorten(0, 0)
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                if os.write(self._descriptor, line) != len(line):
                    # The disk is full. The part of a line would spoil the next one that there is room for.
                    os.ftruncate(self._descriptor, self._size)
                    return
                self._size += len(line)

    def close(self, remove: bool = False) -> None:
        """Let go of the lock. Again is harmless. One that says nothing is removed in any case."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if remove or not self._size:  # while it is locked: nobody else believes to have it
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
        left = _ATTEMPTS
        while True:
            descriptor = os.open(name, _FLAGS, 0o600, dir_fd=self._folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                left -= 1
                if left:
                    time.sleep(_ATTEMPT_SECONDS)  # it may be locked for a `look` only
                    continue
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
                # Shared: those that look do not take each other for an engine.
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            except BlockingIOError:
                return contents, True
            return contents, False
        finally:
            os.close(descriptor)

    def close(self) -> None:
        os.close(self._folder)


def _line(said: Mapping[str, object]) -> bytes:
    return json.dumps(said).encode("ascii") + b"\n"


def _cell_line(cell_id: int, code: str) -> bytes:
    return _line({"cell": cell_id, "code": code})


def _change_line(number: int, what: str) -> bytes:
    return _line({"change": number, "what": what})


def _newest(lines: Iterable[bytes]) -> list[bytes]:
    """As many as a short journal has room for, of lines that begin with the newest; in the order of their numbers."""
    kept, left = [], _LONG_BYTES // 4
    for line in lines:
        left -= len(line)
        if left < 0:
            break
        kept.append(line)
    return kept[::-1]


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
