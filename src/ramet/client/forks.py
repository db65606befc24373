"""What forks and snapshots give to programs that wait."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ramet.client import blocking, operations
from ramet.client.arguments import check_new_name
from ramet.client.handle import SnapshotHandle, behind
from ramet.client.usual_names import no_member_of_list
from ramet.errors import EngineClosed, EngineLost
from ramet.protocol.forks import ForkInfo

if TYPE_CHECKING:
    from ramet.client.sandbox import Sandbox


class Forks(list["Sandbox"]):
    """The children of one fork: a list that can close them all, and knows what they cost (``fork_info``)."""

    def __init__(self, children: Iterable[Sandbox], fork_info: ForkInfo) -> None:
        super().__init__(children)
        self.fork_info = fork_info

    if not TYPE_CHECKING:  # a type checker knows that this is a list

        def __getattr__(self, name: str) -> NoReturn:
            from ramet.client.sandbox import Sandbox

            of_one = hasattr(Sandbox, name) or name in ("id", "files", "network")
            raise no_member_of_list(self, name, of_one, "sandbox.fork()[0]")

    def close(self) -> None:
        """Close every child, even if closing another one fails."""
        with ExitStack() as stack:
            for child in reversed(self):
                stack.callback(child.close)

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            self.close()


class Snapshot:
    """A frozen sandbox. It uses no CPU, and memory only for what its sandbox has changed since."""

    def __init__(self, handle: SnapshotHandle) -> None:
        self._snapshot = handle

    @property
    def id(self) -> str:
        return self._snapshot.id

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} {'closed' if self._snapshot.closed else 'open'}>"

    def save_as(self, name: str) -> None:
        """Save it as a template: ``Sandbox(name)`` works from now on, even after this snapshot is closed."""
        handle = self._snapshot
        snapshot_id = handle.open()
        check_new_name(handle.engine, name)
        blocking.perform(handle.engine, operations.save_snapshot(snapshot_id, name))
        handle.engine.saved_templates.add(name)

    def close(self) -> None:
        """Free the snapshot. Sandboxes that were made from it stay. Closing it twice is allowed."""
        handle = self._snapshot
        try:
            if handle.begin_close():
                blocking.perform(handle.engine, operations.drop_snapshot(handle.id))
        except (EngineLost, EngineClosed):
            pass  # gone with its engine
        except BaseException:
            handle.abandon()  # it is marked as closed, so nobody would try again
            raise

    def __enter__(self) -> Snapshot:
        self._snapshot.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            self.close()

    def __del__(self) -> None:
        handle: SnapshotHandle | None = getattr(self, "_snapshot", None)  # a constructor may have been interrupted
        if handle is not None:
            handle.forgotten(self)
