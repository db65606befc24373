"""Standard output of cells: text streams over descriptors 1 and 2 that keep every byte, in order.

The streams are unbuffered. A line buffer would put Python's output after that of child processes and C code that wrote
later. The raw writer continues after a short write, because a signal or a freeze shortens writes to a pipe.
"""

from __future__ import annotations

import builtins
import codecs
import ctypes
import io
import os
import select
import sys
from typing import TYPE_CHECKING, Any

from ramet_guest.wire import REPL_STDERR, REPL_STDOUT

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDOUT = 1
STDERR = 2
SPARES = {STDOUT: REPL_STDOUT, STDERR: REPL_STDERR}
ERRORS = "ramet"
_IONBF = 2  # stdio.h

_fstat = os.fstat
_raw_write = io.FileIO.write
_print = print


class PipeWriter(io.FileIO):
    """A raw file over descriptor 1 or 2 that writes everything it is given and cannot be closed."""

    def write(self, data: ReadableBuffer, /) -> int:
        written = _raw_write(self, data)
        # print and the text layer pass bytes. Other buffers may count items instead of bytes.
        if type(data) is bytes and written == len(data):
            return written
        return self._write_rest(data, written)

    def _write_rest(self, data: ReadableBuffer, written: int | None) -> int:
        view = memoryview(data).cast("B")
        total = written or 0
        while total < len(view):
            if written is None:
                # Code made the pipe non-blocking, as asyncio's connect_write_pipe does.
                poll = select.poll()
                poll.register(self.fileno(), select.POLLOUT)
                poll.poll()
            written = _raw_write(self, view[total:])
            total += written or 0
        return total

    def close(self) -> None:
        """Does nothing: a wrapper that user code puts around this file would close it when it is collected."""


class CellStream(io.TextIOWrapper):
    """`sys.stdout` or `sys.stderr` of cells: unbuffered, and open whatever user code does to it."""

    mode = "w"

    def __init__(self, descriptor: int, name: str) -> None:
        writer = PipeWriter(descriptor, "w", closefd=False)
        super().__init__(writer, "utf-8", ERRORS, newline="\n", write_through=True)
        writer.name = name
        self._writer = writer

    def close(self) -> None:
        self.flush()

    def detach(self) -> PipeWriter:
        """Returns the raw file and keeps it too: `TextIOWrapper(sys.stdout.detach())` is a common idiom."""
        self.flush()
        return self._writer


def print_whole(
    *values: object, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False
) -> None:
    """Prints the values to a stream, or to sys.stdout by default.

    sep
      string inserted between values, default a space.
    end
      string appended after the last value, default a newline.
    file
      a file-like object (stream); defaults to the current sys.stdout.
    flush
      whether to forcibly flush the stream.
    """
    # The built-in print writes each value and the line's end separately. On an unbuffered stream a reader would get
    # `42` and the newline as two events, and other writers could come in between.
    stream = sys.stdout if file is None else file
    if type(stream) is CellStream and type(sep) is str and type(end) is str:
        stream.write(sep.join([value if type(value) is str else str(value) for value in values]) + end)
    else:
        _print(*values, sep=sep, end=end, file=file, flush=flush)


print_whole.__name__ = print_whole.__qualname__ = "print"
print_whole.__module__ = "builtins"


def escape_surrogates(error: UnicodeError) -> tuple[bytes, int]:
    """Writes U+DC80..U+DCFF as the bytes they stand for (file names) and other lone surrogates as backslash escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    escaped = bytearray()
    for character in error.object[error.start : error.end]:
        number = ord(character)
        if 0xDC80 <= number <= 0xDCFF:
            escaped.append(number - 0xDC00)
        else:
            escaped += character.encode("ascii", "backslashreplace")
    return bytes(escaped), error.end


class Output:
    """The two streams of cells and the pipes under them, which it puts back before each cell."""

    def __init__(self) -> None:
        codecs.register_error(ERRORS, escape_surrogates)
        self.stdout = CellStream(STDOUT, "<stdout>")
        self.stderr = CellStream(STDERR, "<stderr>")
        self.install()
        sys.__stdout__ = self.stdout  # type: ignore[misc]
        sys.__stderr__ = self.stderr  # type: ignore[misc]
        builtins.print = print_whole
        self.remember()

    def install(self) -> None:
        sys.stdout = self.stdout
        sys.stderr = self.stderr

    def replaced(self) -> bool:
        return getattr(sys, "stdout", None) is not self.stdout or getattr(sys, "stderr", None) is not self.stderr

    def put_back_missing(self) -> None:
        """Restores a stream after `del sys.stdout`. A replacement of ours belongs to the user, even None, and stays."""
        if not hasattr(sys, "stdout"):
            sys.stdout = self.stdout
        if not hasattr(sys, "stderr"):
            sys.stderr = self.stderr

    def remember(self, stdout: int = STDOUT, stderr: int = STDERR) -> None:
        """Records which pipes belong behind descriptors 1 and 2."""
        self._stdout_inode = _fstat(stdout).st_ino
        self._stderr_inode = _fstat(stderr).st_ino

    def mend(self) -> None:
        """Puts the pipes back under 1 and 2 if the last cell closed or redirected them."""
        try:
            if _fstat(STDOUT).st_ino == self._stdout_inode and _fstat(STDERR).st_ino == self._stderr_inode:
                return
        except OSError:
            pass
        for descriptor, inode in ((STDOUT, self._stdout_inode), (STDERR, self._stderr_inode)):
            try:
                same = _fstat(descriptor).st_ino == inode
            except OSError:
                same = False
            if not same:
                os.dup2(SPARES[descriptor], descriptor, inheritable=True)

    def cell_error(self, text: str) -> None:
        """Writes the error that ended a cell to the cell's own stderr, as a notebook does.

        A stream that the user put in place of `sys.stderr` does not get it.
        """
        self.stderr.write(text)

    def error_text(self, text: str) -> None:
        """Writes to `sys.stderr`, as Python does, or to the cell's own if the user's is broken or None."""
        try:
            stream = sys.stderr
            stream.write(text)
            stream.flush()
        except Exception:
            self.stderr.write(text)


def unbuffer_c_stdio() -> None:
    """Makes `printf` and `puts` of C code write at once. Their text would otherwise stay in a buffer until exit."""
    library = ctypes.CDLL(None)
    for name in ("stdout", "stderr"):
        library.setvbuf(ctypes.c_void_p.in_dll(library, name), None, _IONBF, 0)
