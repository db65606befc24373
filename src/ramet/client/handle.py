"""What both faces share, of a sandbox and of a snapshot: engine, id, open or closed, the warning when forgotten."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from ramet.client.checked import Checked
from ramet.client.tools.tool import NO_TOOLS, Toolset
from ramet.errors import RametError, SandboxClosed
from ramet.protocol import calls
from ramet.protocol.refusing import Words, kind_of, must, wrong_argument
from ramet.transport.seam import Engine

if TYPE_CHECKING:
    from ramet.client.tools.answering import Answering


def behind(error: BaseException | None) -> AbstractContextManager[None]:
    """For what is closed while an error is on its way: that one is told, and not one that follows from it."""
    return nullcontext() if error is None else suppress(RametError)


class _Held:
    """Something of an engine, by its id. Owns nothing but the duty to close it, unless another handle has that."""

    kind: int  # of the call that closes it

    def __init__(self, engine: Engine, some_id: str, *, owned: bool = True) -> None:
        self.engine = engine
        self.id = some_id
        self.closed = False
        self._owner_pid = os.getpid() if owned else None

    def begin_close(self) -> bool:
        """Mark as closed. False if there is nothing to do: closed before, or an engine that is gone or not ours."""
        closed, self.closed = self.closed, True
        return not closed and self.engine.running

    def abandon(self) -> None:
        """Close without waiting: its owner never got it, or could not close it. To be called twice is no harm."""
        self.closed = True
        if self.engine.running:
            self.engine.forget(self.id, self.kind)

    def forgotten(self, owner: object) -> None:
        """For finalizers: close without waiting, and warn. In a forked child it is still the parent's to close."""
        if self._owner_pid == os.getpid() and self.begin_close():
            if self.engine.remote and sys.is_finalizing():
                return  # lives on at the server, for whoever knows its id, until its lifetime is over
            self.engine.forget(self.id, self.kind)
            warnings.warn(
                f"{type(owner).__name__} {self.id} was never closed", ResourceWarning, source=owner, stacklevel=3
            )


class Handle(_Held):
    """A sandbox of an engine."""

    kind = calls.CLOSE

    def __init__(self, engine: Engine, sandbox_id: str, *, owned: bool = True, tools: Toolset = NO_TOOLS) -> None:
        super().__init__(engine, sandbox_id, owned=owned)
        self.tools = tools  # whose calls are answered from here
        self._checked = Checked(sandbox_id, recorded=engine.remote)
        self._merged_into: str | None = None

    def open(self) -> Checked:
        """The operations, if they can be carried out: the sandbox is open, and this is the process that made it."""
        self.engine.check()
        if self._merged_into is not None:
            raise SandboxClosed(f"sandbox {self.id} was merged; its state continues in sandbox {self._merged_into}")
        if self.closed:
            raise SandboxClosed(f"sandbox {self.id} is closed")
        return self._checked

    def answering(self, on_loop: bool = False, patient: bool = False) -> Answering | None:
        """For a cell that is about to run, on an event loop or not: who answers its tool calls, if there are tools.

        One who runs it is patient if nothing but its end is waited for.
        """
        if not self.tools:
            return None
        # Imported when needed: most programs have none.
        from ramet.client.tools.answering import Answering

        return Answering(self, on_loop, patient)

    def related(self, other: object, argument: str) -> Handle:
        """The handle of another sandbox of the same engine, given as an argument."""
        handle = getattr(other, "_handle", None)
        if not isinstance(handle, Handle):
            made = Words("one that was not created yet") if hasattr(other, "_handle") else kind_of(other)
            raise must(argument, "be a Sandbox or an AsyncSandbox that was created", made)
        self._check_engine(handle, argument)
        return handle

    def restorable(self, snapshot: object, argument: str = "snapshot") -> str:
        """The id of a snapshot of the same engine, given as an argument."""
        handle = snapshot_handle(snapshot, argument)
        self._check_engine(handle, argument)
        return handle.open()

    def _check_engine(self, other: _Held, argument: str) -> None:
        if other.engine.place != self.engine.place:
            raise wrong_argument(
                argument, f"{argument} must belong to the same engine; {other.id} belongs to another one"
            )

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

    kind = calls.DROP

    def open(self) -> str:
        """Its id, if it can be used."""
        self.engine.check()
        if self.closed:
            raise SandboxClosed(f"snapshot {self.id} is closed")
        return self.id


def snapshot_handle(snapshot: object, argument: str) -> SnapshotHandle:
    handle = getattr(snapshot, "_snapshot", None)
    if not isinstance(handle, SnapshotHandle):
        raise must(argument, "be a Snapshot or an AsyncSnapshot", kind_of(snapshot))
    return handle
