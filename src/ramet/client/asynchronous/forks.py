"""AsyncForks and AsyncSnapshot: the children of a fork, and a frozen sandbox, for programs on an event loop."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AsyncExitStack, aclosing
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ramet.client.arguments import check_image_name, check_new_name, sandbox_spec, server_for
from ramet.client.drivers import asynchronous
from ramet.client.folders import CountedFile
from ramet.client.handle import SnapshotHandle, closing_after
from ramet.client.image_files import NewImageFile
from ramet.client.operations import forks
from ramet.client.usual_names import no_member_of_list
from ramet.errors import EngineClosed, EngineLost
from ramet.protocol.calls import CHUNK_BYTES
from ramet.protocol.values.forks import ForkInfo
from ramet.protocol.values.specs import ThawSpec

if TYPE_CHECKING:
    from ramet.client.asynchronous.sandbox import AsyncSandbox


class AsyncForks(list["AsyncSandbox"]):
    """The children of one fork: a list that can close them all, and knows what they cost (``fork_info``)."""

    def __init__(self, children: Iterable[AsyncSandbox], fork_info: ForkInfo) -> None:
        super().__init__(children)
        self.fork_info = fork_info

    if not TYPE_CHECKING:  # a type checker knows that this is a list

        def __getattr__(self, name: str) -> NoReturn:
            from ramet.client.asynchronous.sandbox import AsyncSandbox

            of_one = hasattr(AsyncSandbox, name) or name in ("id", "files", "network")
            raise no_member_of_list(self, name, of_one, "(await sandbox.fork())[0]")

    async def close(self) -> None:
        """Close every child, even if closing another one fails. Raises the first error once all are closed."""
        async with AsyncExitStack() as stack:
            for child in reversed(self):
                stack.push_async_callback(child.close)

    async def __aenter__(self) -> AsyncForks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing_after(error):
            await self.close()


class AsyncSnapshot:
    """A frozen sandbox. It uses no CPU, and memory only for what its sandbox has changed since."""

    def __init__(self, handle: SnapshotHandle) -> None:
        self._snapshot = handle

    @property
    def id(self) -> str:
        """Name of the snapshot, unique in its engine."""
        return self._snapshot.id

    def __repr__(self) -> str:
        return f"<AsyncSnapshot {self.id} {'closed' if self._snapshot.closed else 'open'}>"

    async def save_as(self, name: str) -> None:
        """Save it as a template: ``AsyncSandbox(name)`` works from now on, even after this snapshot is closed.

        Raises InvalidArgument if the name is not allowed or a template has it, SandboxClosed if the snapshot is closed.
        """
        handle = self._snapshot
        snapshot_id = handle.open()
        check_new_name(handle.engine, name)
        await asynchronous.perform(handle.engine, forks.save_snapshot(snapshot_id, name))
        handle.engine.saved_templates.add(name)

    async def save(self, name: str) -> int:
        """Write it to disk: ``AsyncSandbox(name)`` works from now on, also in other programs and after a reboot.

        A snapshot that was saved by this name before is replaced. Returns the bytes that it takes on disk.

        Raises InvalidArgument if the name is not allowed or a template has it, SandboxClosed if the snapshot is closed,
        RametError if it could not be written.
        """
        handle = self._snapshot
        snapshot_id = handle.open()
        check_image_name(name)
        size = await asynchronous.perform(handle.engine, forks.save_on_disk(snapshot_id, name))
        handle.engine.saved_templates.add(name)
        return size

    async def export(self, path: str | PathLike[str]) -> int:
        """Write it to one file, which ``AsyncSnapshot.load`` reads, here or on another machine like this one.

        The file holds the memory of the sandbox: only you can read it. A file at that path is replaced when the new one
        is complete. Returns its bytes. Raises SandboxClosed if the snapshot is closed, RametError if it cannot be
        written, OSError for the path.
        """
        handle = self._snapshot
        snapshot_id = handle.open()
        file = NewImageFile(path)
        try:
            async with aclosing(asynchronous.iterate(handle.engine, forks.export_snapshot(snapshot_id))) as pieces:
                async for piece in pieces:
                    await asynchronous.write_piece(file.write, piece)
            file.finish()
        finally:
            file.leave()
        return file.size_bytes

    @classmethod
    async def load(
        cls,
        path: str | PathLike[str],
        *,
        python: str | None = None,
        memory_mib: int | None = None,
        disk_mib: int | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> AsyncSnapshot:
        """Read a file that ``export`` wrote: ``AsyncSandbox(snapshot)`` goes on where it stood.

        The file is not trusted: limits, network, mounts and secrets are those that you give. ``memory_mib`` and
        ``disk_mib`` bound what it may bring along, and are the limits of its sandboxes. It fits only an interpreter and
        libraries that are the same as where it was made, and this version of Ramet.

        Raises RametError with what does not fit or is wrong with the file, OSError for the path.
        """
        server = server_for(None, url, api_key)
        spec = sandbox_spec("default", server, python=python, memory_mib=memory_mib, disk_mib=disk_mib)
        assert not isinstance(spec, ThawSpec)
        engine = await asynchronous.engine_at(url, api_key)
        with CountedFile(os.fspath(path)) as source:
            return await asynchronous.make(
                engine,
                forks.import_snapshot(spec),
                lambda made: cls(SnapshotHandle(engine, made)),
                source.pieces(CHUNK_BYTES),
            )

    async def close(self) -> None:
        """Free the snapshot. Sandboxes that were made from it stay. Closing it twice is allowed."""
        handle = self._snapshot
        try:
            if handle.begin_close():
                await asynchronous.perform(handle.engine, forks.drop_snapshot(handle.id))
        except (EngineLost, EngineClosed):
            pass  # gone with its engine
        except BaseException:
            handle.abandon()  # it is marked as closed, so a second close would do nothing
            raise

    async def __aenter__(self) -> AsyncSnapshot:
        self._snapshot.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing_after(error):
            await self.close()

    def __del__(self) -> None:
        handle: SnapshotHandle | None = getattr(self, "_snapshot", None)  # a constructor may have been interrupted
        if handle is not None:
            handle.forgotten(self)
