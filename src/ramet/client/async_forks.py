"""What forks and snapshots give to programs on an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ramet.client import asynchronous, operations
from ramet.client.arguments import check_new_name
from ramet.client.handle import SnapshotHandle, behind
from ramet.client.usual_names import no_member_of_list
from ramet.errors import EngineClosed, EngineLost
from ramet.protocol.forks import ForkInfo

if TYPE_CHECKING:
    from ramet.client.async_sandbox import AsyncSandbox


class AsyncForks(list["AsyncSandbox"]):
    """The children of one fork: a list that can close them all, and knows what they cost (``fork_info``)."""

    def __init__(self, children: Iterable[AsyncSandbox], fork_info: ForkInfo) -> None:
        super().__init__(children)
        self.fork_info = fork_info

    if not TYPE_CHECKING:  # a type checker knows that this is a list

        def __getattr__(self, name: str) -> NoReturn:
            from ramet.client.async_sandbox import AsyncSandbox

            of_one = hasattr(AsyncSandbox, name) or name in ("id", "files", "network")
            raise no_member_of_list(self, name, of_one, "(await sandbox.fork())[0]")

    async def close(self) -> None:
        """Close every child, even if closing another one fails."""
        async with AsyncExitStack() as stack:
            for child in reversed(self):
                stack.push_async_callback(child.close)

    async def __aenter__(self) -> AsyncForks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            await self.close()


class AsyncSnapshot:
    """A Snapshot with ``await``."""

    def __init__(self, handle: SnapshotHandle) -> None:
        self._snapshot = handle

    @property
    def id(self) -> str:
        return self._snapshot.id

    def __repr__(self) -> str:
        return f"<AsyncSnapshot {self.id} {'closed' if self._snapshot.closed else 'open'}>"

    async def save_as(self, name: str) -> None:
        """Make it a template of this engine, which goes by this name also after this snapshot was closed."""
        handle = self._snapshot
        snapshot_id = handle.open()
        check_new_name(handle.engine, name)
        await asynchronous.perform(handle.engine, operations.save_snapshot(snapshot_id, name))
        handle.engine.saved_templates.add(name)

    async def close(self) -> None:
        """Free the snapshot. Sandboxes that were made from it stay. Closing it twice is allowed."""
        handle = self._snapshot
        try:
            if handle.begin_close():
                await asynchronous.perform(handle.engine, operations.drop_snapshot(handle.id))
        except (EngineLost, EngineClosed):
            pass  # gone with its engine
        except BaseException:
            handle.abandon()  # it is marked as closed, so nobody would try again
            raise

    async def __aenter__(self) -> AsyncSnapshot:
        self._snapshot.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            await self.close()

    def __del__(self) -> None:
        handle: SnapshotHandle | None = getattr(self, "_snapshot", None)  # a constructor may have been interrupted
        if handle is not None:
            handle.forgotten(self)
