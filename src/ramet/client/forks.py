"""What forks and snapshots give to programs that wait."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from ramet.client import blocking, operations
from ramet.client.arguments import check_new_name
from ramet.client.handle import SnapshotHandle, behind
from ramet.errors import EngineClosed, EngineLost
from ramet.protocol.forks import ForkInfo

if TYPE_CHECKING:
    from ramet.client.sandbox import Sandbox


class Forks(list["Sandbox"]):
    """The children of one fork: a list that can close them all, and knows what they cost."""

    def __init__(self, children: Iterable[Sandbox], fork_info: ForkInfo) -> None:
        super().__init__(children)
        self.fork_info = fork_info

    def close(self) -> None:
        """Close every child, whatever happens to the others."""
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
    """A frozen sandbox. It costs no processor time, and memory only for what its sandbox changed since."""

    def __init__(self, handle: SnapshotHandle) -> None:
        self._snapshot = handle

    @property
    def id(self) -> str:
        return self._snapshot.id

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} {'closed' if self._snapshot.closed else 'open'}>"

    def save_as(self, name: str) -> None:
        """Make it a template of this engine: ``Sandbox(name)`` from now on, also after this snapshot was closed."""
        handle = self._snapshot
        snapshot_id = handle.open()
        check_new_name(handle.engine, name)
        blocking.perform(handle.engine, operations.save_snapshot(snapshot_id, name))
        handle.engine.saved_templates.add(name)

    def close(self) -> None:
        """Let go of it. Sandboxes that were made from it stay. Closing twice is no error."""
        handle = self._snapshot
        if handle.begin_close():
            try:
                blocking.perform(handle.engine, operations.drop_snapshot(handle.id))
            except (EngineLost, EngineClosed):
                pass  # gone with its engine

    def __enter__(self) -> Snapshot:
        self._snapshot.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            self.close()

    def __del__(self) -> None:
        self._snapshot.forgotten(self)
