"""The files of a sandbox, for programs on an event loop."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing

from ramet.client.drivers import asynchronous
from ramet.client.folders import Copied, Copying, CopyStep, CountedFile, ListFolder, MakeFolder, SendFile, StatPath
from ramet.client.handle import HandleOwner
from ramet.client.operations import files
from ramet.client.sources import Data, async_pieces
from ramet.protocol.calls import CHUNK_BYTES
from ramet.protocol.values.results import FileInfo


class AsyncFiles:
    """The files of a sandbox, from outside: works while a cell runs. Relative paths are below /root.

    Every method raises a ``FileError``, which is an ``OSError``, too, if it fails: ``FileNotFound``, for instance, is a
    ``FileNotFoundError``. A path that is not allowed raises InvalidArgument.
    """

    def __init__(self, owner: HandleOwner) -> None:
        self._owner = owner

    async def read(self, path: str) -> bytes:
        """The contents of a file. Raises LimitReached for more than 2 GiB: use ``read_stream``."""
        handle = self._owner._created()
        return await asynchronous.perform(handle.engine, files.read(handle.open(), path))

    async def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a text file. Raises UnicodeDecodeError for bytes that the encoding does not have."""
        return (await self.read(path)).decode(encoding, errors)

    def read_stream(self, path: str, chunk: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        """The contents of a file in pieces of at most ``chunk`` bytes, in constant memory."""
        handle = self._owner._created()
        return asynchronous.iterate(handle.engine, files.read_stream(handle.open(), path, chunk))

    async def write(self, path: str, data: Data | AsyncIterable[bytes]) -> None:
        """Write a file, with the folders above it. A string is written as UTF-8."""
        handle = self._owner._created()
        await asynchronous.perform(handle.engine, files.write(handle.open(), path, data), async_pieces(data))

    async def stat(self, path: str) -> FileInfo:
        """Type, size, permissions and time of what is at a path; links are followed. Raises FileNotFound."""
        handle = self._owner._created()
        return await asynchronous.perform(handle.engine, files.stat(handle.open(), path))

    async def exists(self, path: str) -> bool:
        """Whether there is anything at a path."""
        handle = self._owner._created()
        return await asynchronous.perform(handle.engine, files.exists(handle.open(), path))

    async def mkdir(self, path: str, parents: bool = True) -> None:
        """Make a folder. With ``parents``, make those above it too, and accept one that exists.

        Without ``parents``, raises FileExists if the folder exists and FileNotFound if the one above it does not.
        """
        handle = self._owner._created()
        await asynchronous.perform(handle.engine, files.make_folder(handle.open(), path, parents))

    async def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or an empty folder; with ``recursive`` a folder and all that is in it."""
        handle = self._owner._created()
        await asynchronous.perform(handle.engine, files.remove(handle.open(), path, recursive))

    async def rename(self, path: str, new_path: str) -> None:
        """Give a file or folder another path. A file that is already at that path is replaced."""
        handle = self._owner._created()
        await asynchronous.perform(handle.engine, files.rename(handle.open(), path, new_path))

    async def list(self, path: str = ".") -> builtins.list[FileInfo]:
        """The entries of a folder, sorted by name. Raises FileNotFolder if the path is a file."""
        handle = self._owner._created()
        return await asynchronous.perform(handle.engine, files.list_folder(handle.open(), path))

    async def _copy(self, copying: Copying) -> Copied:
        """Carry out the steps of an upload or a download."""
        try:
            step = next(copying)
            while True:
                step = copying.send(await self._take(step))
        except StopIteration as stop:
            copied: Copied = stop.value
            return copied
        finally:
            copying.close()

    async def _take(self, step: CopyStep) -> object:
        """Carry out one step; its class says what it gives."""
        if isinstance(step, StatPath):
            return await self.stat(step.path)
        if isinstance(step, ListFolder):
            return await self.list(step.path)
        if isinstance(step, MakeFolder):
            await self.mkdir(step.path)
            return None
        if isinstance(step, SendFile):
            with CountedFile(step.source, step.opener) as source:
                await self.write(step.path, source.pieces(CHUNK_BYTES))
                return source.size_bytes
        target = step.target
        try:
            target.open()
            async with aclosing(self.read_stream(step.path)) as stream:
                async for piece in stream:
                    await asynchronous.write_piece(target.write, piece)
            target.finish()
        finally:
            target.leave()
        return target.size_bytes
