"""The files of a sandbox, for programs on an event loop."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from typing import Protocol

from ramet.client import asynchronous
from ramet.client.folders import Copied, Copying, Counted, List, MakeFolder, Save, Send, Stat
from ramet.client.handle import Handle
from ramet.client.sources import Data, async_pieces
from ramet.protocol.calls import CHUNK_BYTES
from ramet.protocol.results import FileInfo


class Created(Protocol):
    """An AsyncSandbox, which may not be there yet."""

    def _created(self) -> Handle: ...


class AsyncFiles:
    """The files of a sandbox, from outside: works while a cell runs. Relative paths are below /root.

    What fails raises a ``FileError``, which is an ``OSError``, too: ``FileNotFound`` is a ``FileNotFoundError``.
    """

    def __init__(self, sandbox: Created) -> None:
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        """The contents of a file. Raises LimitReached for more than 2 GiB: use ``read_stream``."""
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().read(path))

    async def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The contents of a text file. Raises UnicodeDecodeError for bytes that the encoding does not have."""
        return (await self.read(path)).decode(encoding, errors)

    def read_stream(self, path: str, chunk: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        """The contents of a file in pieces of at most ``chunk`` bytes, in constant memory."""
        handle = self._sandbox._created()
        return asynchronous.iterate(handle.engine, handle.open().read_stream(path, chunk))

    async def write(self, path: str, data: Data | AsyncIterable[bytes]) -> None:
        """Write a file, with the folders above it. A string is written as UTF-8."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().write(path, data), async_pieces(data))

    async def stat(self, path: str) -> FileInfo:
        """Type, size, permissions and time of what is at a path; links are followed."""
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().stat(path))

    async def exists(self, path: str) -> bool:
        """Whether there is anything at a path."""
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().exists(path))

    async def mkdir(self, path: str, parents: bool = True) -> None:
        """Make a folder. With ``parents`` those above it too, and one that exists is no error."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().mkdir(path, parents))

    async def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or an empty folder; with ``recursive`` a folder and all that is in it."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().remove(path, recursive))

    async def rename(self, path: str, new_path: str) -> None:
        """Give a file or folder another path. What was at that path is replaced, if it is a file."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().rename(path, new_path))

    async def list(self, path: str = ".") -> builtins.list[FileInfo]:
        """The entries of a folder, sorted by name."""
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().list(path))

    async def _copy(self, copying: Copying) -> Copied:
        """Carry out the steps of an upload or a download."""
        try:
            step = next(copying)
            while True:
                step = copying.send(await self._do(step))
        except StopIteration as stop:
            copied: Copied = stop.value
            return copied
        finally:
            copying.close()

    async def _do(self, step: Stat | List | Save | MakeFolder | Send) -> object:
        if isinstance(step, Stat):
            return await self.stat(step.path)
        if isinstance(step, List):
            return await self.list(step.path)
        if isinstance(step, MakeFolder):
            await self.mkdir(step.path)
            return None
        if isinstance(step, Send):
            with Counted(step.source, step.opener) as source:
                await self.write(step.path, source.pieces(CHUNK_BYTES))
                return source.size_bytes
        landing = step.landing
        try:
            landing.open()
            async with aclosing(self.read_stream(step.path)) as stream:
                async for piece in stream:
                    await _in_thread(landing.write, piece)
            landing.finish()
        finally:
            landing.leave()
        return landing.size_bytes


async def _in_thread(work: Callable[[bytes], None], piece: bytes) -> None:
    """A local disk can be slow. A task that is cancelled waits all the same: the file is closed after this."""
    writing = asyncio.ensure_future(asyncio.to_thread(work, piece))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise
