"""The files of a sandbox, for programs that wait."""

from __future__ import annotations

import builtins
from collections.abc import Generator

from ramet.client import blocking
from ramet.client.folders import Copied, Copying, Counted, List, MakeFolder, Save, Send, Stat
from ramet.client.handle import Handle
from ramet.client.sources import Data, pieces
from ramet.protocol.calls import CHUNK_BYTES
from ramet.protocol.results import FileInfo


class Files:
    """The files of a sandbox, from outside: works while a cell runs. Relative paths are below /root.

    What fails raises a ``FileError``, which is an ``OSError``, too: ``FileNotFound`` is a ``FileNotFoundError``.
    """

    def __init__(self, handle: Handle) -> None:
        self._engine = handle.engine
        self._open = handle.open

    def read(self, path: str) -> bytes:
        """The contents of a file. Raises LimitReached for more than 2 GiB: use ``read_stream``."""
        return blocking.perform(self._engine, self._open().read(path))

    def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a text file. Raises UnicodeDecodeError for bytes that the encoding does not have."""
        return self.read(path).decode(encoding, errors)

    def read_stream(self, path: str, chunk: int = CHUNK_BYTES) -> Generator[bytes, None, None]:
        """The contents of a file in pieces of at most ``chunk`` bytes, in constant memory."""
        return blocking.iterate(self._engine, self._open().read_stream(path, chunk))

    def write(self, path: str, data: Data) -> None:
        """Write a file, with the folders above it. A string is written as UTF-8."""
        blocking.perform(self._engine, self._open().write(path, data), pieces(data))

    def stat(self, path: str) -> FileInfo:
        """Type, size, permissions and time of what is at a path; links are followed."""
        return blocking.perform(self._engine, self._open().stat(path))

    def exists(self, path: str) -> bool:
        """Whether there is anything at a path."""
        return blocking.perform(self._engine, self._open().exists(path))

    def mkdir(self, path: str, parents: bool = True) -> None:
        """Make a folder. With ``parents`` those above it too, and one that exists is no error."""
        blocking.perform(self._engine, self._open().mkdir(path, parents))

    def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or an empty folder; with ``recursive`` a folder and all that is in it."""
        blocking.perform(self._engine, self._open().remove(path, recursive))

    def rename(self, path: str, new_path: str) -> None:
        """Give a file or folder another path. What was at that path is replaced, if it is a file."""
        blocking.perform(self._engine, self._open().rename(path, new_path))

    def list(self, path: str = ".") -> builtins.list[FileInfo]:
        """The entries of a folder, sorted by name."""
        return blocking.perform(self._engine, self._open().list(path))

    def _copy(self, copying: Copying) -> Copied:
        """Carry out the steps of an upload or a download."""
        try:
            step = next(copying)
            while True:
                step = copying.send(self._do(step))
        except StopIteration as stop:
            copied: Copied = stop.value
            return copied
        finally:
            copying.close()

    def _do(self, step: Stat | List | Save | MakeFolder | Send) -> object:
        if isinstance(step, Stat):
            return self.stat(step.path)
        if isinstance(step, List):
            return self.list(step.path)
        if isinstance(step, MakeFolder):
            self.mkdir(step.path)
            return None
        if isinstance(step, Send):
            with Counted(step.source, step.opener) as source:
                self.write(step.path, source.pieces(CHUNK_BYTES))
                return source.size_bytes
        landing = step.landing
        try:
            landing.open()
            for piece in self.read_stream(step.path):
                landing.write(piece)
            landing.finish()
        finally:
            landing.leave()
        return landing.size_bytes
