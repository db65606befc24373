"""What both faces share, of a sandbox and of a snapshot: engine, id, open or closed, the warning when forgotten."""

from __future__ import annotations

import warnings

from ramet.client.checked import Checked
from ramet.errors import SandboxClosed
from ramet.protocol.checks import invalid
from ramet.transport.embedded import EmbeddedEngine


class _Held:
    """Something of an engine, by its id. Owns nothing but the duty to close it."""

    def __init__(self, engine: EmbeddedEngine, some_id: str) -> None:
        self.engine = engine
        self.id = some_id
        self.closed = False

    def begin_close(self) -> bool:
        """Mark as closed. False if there is nothing to do: closed before, or an engine that is gone or not ours."""
        closed, self.closed = self.closed, True
        return not closed and self.engine.running

    def forgotten(self, owner: object) -> None:
        """For finalizers: close without waiting, and warn."""
        if self.begin_close():
            self.engine.forget(self.id)
            warnings.warn(
                f"{type(owner).__name__} {self.id} was never closed", ResourceWarning, source=owner, stacklevel=3
            )


class Handle(_Held):
    """A sandbox of an engine."""

    def __init__(self, engine: EmbeddedEngine, sandbox_id: str) -> None:
        super().__init__(engine, sandbox_id)
        self._checked = Checked(sandbox_id)
        self._merged_into: str | None = None

    def open(self) -> Checked:
        """The operations, if they can be carried out: the sandbox is open, and this is the process that made it."""
        self.engine.check()
        if self._merged_into is not None:
            raise SandboxClosed(f"sandbox {self.id} was merged: its state goes on as sandbox {self._merged_into}")
        if self.closed:
            raise SandboxClosed(f"sandbox {self.id} is closed")
        return self._checked

    def related(self, other: object, argument: str) -> Handle:
        """The handle of another sandbox of the same engine, given as an argument."""
        handle = getattr(other, "_handle", None)
        if not isinstance(handle, Handle):
            made = "was not created yet" if hasattr(other, "_handle") else f"is a {type(other).__name__}"
            raise invalid(argument, made, "a Sandbox or an AsyncSandbox that was created")
        self._check_engine(handle, argument)
        return handle

    def restorable(self, snapshot: object, argument: str = "snapshot") -> str:
        """The id of a snapshot of the same engine, given as an argument."""
        handle = snapshot_handle(snapshot, argument)
        self._check_engine(handle, argument)
        return handle.open()

    def _check_engine(self, other: _Held, argument: str) -> None:
        if other.engine is not self.engine:
            raise invalid(argument, f"{other.id} belongs to another engine", "one of the same engine")

    @property
    def state(self) -> str:
        if self._merged_into is not None:
            return "merged"
        return "closed" if self.closed else "open"

    def merged(self, into: Handle) -> None:
        """Its state is another's now: there is nothing left to close."""
        self.closed = True
        self._merged_into = into.id


class SnapshotHandle(_Held):
    """A snapshot of an engine."""

    def open(self) -> str:
        """Its id, if it can be used."""
        self.engine.check()
        if self.closed:
            raise SandboxClosed(f"snapshot {self.id} is closed")
        return self.id


def snapshot_handle(snapshot: object, argument: str) -> SnapshotHandle:
    handle = getattr(snapshot, "_snapshot", None)
    if not isinstance(handle, SnapshotHandle):
        raise invalid(argument, f"is a {type(snapshot).__name__}", "a Snapshot or an AsyncSnapshot")
    return handle
