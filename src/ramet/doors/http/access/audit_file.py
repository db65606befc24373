"""The audit log on disk: lines are only appended, old files are removed, and a full disk fails no request.

    audit.jsonl  audit.jsonl.1  audit.jsonl.2  audit.jsonl.3        newest to oldest; about the same size each

The worker, which speaks HTTP, sends its lines through a pipe to a thread of the supervisor, which writes them. So no
request waits for the disk, and the lines of a worker that is killed stay in the pipe and are written. `ramet keys`
appends its lines itself. A lock on the folder keeps the two from rotating, or from cutting a failed write, at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

AUDIT_NAME = "audit.jsonl"
_OLDER_FILES = 3
_PIPE_BYTES = 1024 * 1024
_LINE_BYTES_AT_MOST = 64 * 1024
_GATHER_SECONDS = 0.05  # lines that come within this time are written together
_LOCK_SECONDS = 2.0
_LOCK_LOOK_SECONDS = 0.01
_COMPLAIN_EVERY_SECONDS = 60.0
_LAST_LINES_SECONDS = 5.0


class AuditFile:
    """The newest file and the older ones. It keeps no file open, so that an operator may move them away at any time."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """``most_bytes`` bounds all files together."""
        self._folder = folder
        self._path = folder / AUDIT_NAME
        self._file_bytes = max(most_bytes // (_OLDER_FILES + 1), 1)

    def __repr__(self) -> str:
        return f"<AuditFile {str(self._path)!r}>"

    def append(self, lines: bytes) -> None:
        """Append whole lines, all or none.

        Raises OSError if there is no room or no permission, or the lock stays taken.
        """
        with self._locked():
            descriptor = self._open()
            try:
                size = os.fstat(descriptor).st_size
                if size and size + len(lines) > self._file_bytes:
                    self._rotate()
                    os.close(descriptor)
                    descriptor = self._open()
                    size = os.fstat(descriptor).st_size
                # A power cut may have torn the last line. A newline first, so that the new lines do not continue it.
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                self._write(descriptor, b"\n" + lines if torn else lines, size)
            finally:
                os.close(descriptor)

    @staticmethod
    def _write(descriptor: int, data: bytes, size: int) -> None:
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            os.ftruncate(descriptor, size)  # leave no half line on a full disk
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._path, flags, 0o600)

    def _rotate(self) -> None:
        older = [self._path.with_name(f"{AUDIT_NAME}.{number}") for number in range(1, _OLDER_FILES + 1)]
        for newer, old in reversed(list(zip([self._path, *older], older, strict=False))):
            with suppress(FileNotFoundError):
                os.replace(newer, old)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            until = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(_LOCK_LOOK_SECONDS)
            yield
        finally:
            os.close(folder)


class AuditWriter:
    """Owns a pipe and the thread that writes its lines to disk.

    A full disk raises nothing: ``complain`` gets a message.
    """

    def __init__(self, file: AuditFile, complain: Callable[[str], None]) -> None:
        self._file = file
        self._complain = complain
        self._rest = b""  # an incomplete line
        self._lost = 0
        self._complained_at = -_COMPLAIN_EVERY_SECONDS
        self._reader, self.descriptor = os.pipe()
        os.set_blocking(self._reader, False)
        with suppress(OSError):  # above the limit of this user; the default of 64 KiB is enough
            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._run, name="ramet-audit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close our end. The thread still writes what is in the pipe, unless the disk takes too long."""
        os.close(self.descriptor)
        self._thread.join(_LAST_LINES_SECONDS)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        while True:
            ended = not any(events & select.POLLIN for _, events in poll.poll())
            if ended:
                return  # every writer has closed its end, and everything was read
            time.sleep(_GATHER_SECONDS)
            if lines := self._read():
                self._append(lines)

    def _read(self) -> bytes:
        pieces: list[bytes] = []
        with suppress(BlockingIOError):
            while len(pieces) < _PIPE_BYTES // 65536 and (piece := os.read(self._reader, 65536)):
                pieces.append(piece)
        # A read may end in the middle of a line; the rest of it comes with the next read.
        whole, newline, self._rest = b"".join([self._rest, *pieces]).rpartition(b"\n")
        if len(self._rest) > _LINE_BYTES_AT_MOST:  # a broken worker must not fill the supervisor's memory
            self._rest = b""
            self._lost += 1
        return whole + newline

    def _append(self, lines: bytes) -> None:
        told = _line({"action": "lines lost", "count": self._lost}) if self._lost else b""
        try:
            self._file.append(told + lines)
            self._lost = 0
        except OSError as error:
            self._lost += lines.count(b"\n")
            now = time.monotonic()
            if now - self._complained_at >= _COMPLAIN_EVERY_SECONDS:
                self._complained_at = now
                self._complain(f"cannot write the audit log: {error.strerror}; {self._lost} lines are lost so far")


def note_key_change(folder: Path, most_bytes: int, action: str, facts: Mapping[str, object]) -> None:
    """Append a line about what an operator did to a key on this machine. Raises OSError."""
    AuditFile(folder, most_bytes).append(_line({"action": action, **facts, "uid": os.getuid()}))


def _line(fields: Mapping[str, object]) -> bytes:
    time_text = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return json.dumps({"time": time_text, **fields}, separators=(",", ":")).encode("ascii") + b"\n"
