"""Handles of sandboxes and snapshots, shared by both faces: engine, id, open or closed, the warning when forgotten."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

from ramet.client.operations.cells import CellOrder
from ramet.client.tools.tool import NO_TOOLS, Toolset
from ramet.errors import RametError, SandboxClosed
from ramet.protocol import calls
from ramet.protocol.argument_errors import Words, kind_of, must, wrong_argument
from ramet.transport.seam import Engine

if TYPE_CHECKING:
    from ramet.client.tools.call_runner import ToolCallRunner


def closing_after(error: BaseException | None) -> AbstractContextManager[None]:
    """Suppress Ramet's errors while another error is on its way: that one is the cause, and reaches the user."""
    return nullcontext() if error is None else suppress(RametError)


class _EngineObject:
    """A sandbox or a snapshot of an engine, by its id.

    Owns nothing but the duty to close it, and that only if it is ``owned``: a handle of something that existed before
    may be forgotten.
    """

    close_call: int  # kind of the engine call that closes it

    def __init__(self, engine: Engine, object_id: str, *, owned: bool = True) -> None:
        self.engine = engine
        self.id = object_id
        self.closed = False
        self._owner_pid = os.getpid() if owned else None

    def begin_close(self) -> bool:
        """Mark as closed. Returns False if nothing is left to do: it is closed, or the engine is gone or not ours."""
        closed, self.closed = self.closed, True
        return not closed and self.engine.running

    def abandon(self) -> None:
        """Close without waiting, because the owner never received it or failed to close it. May be called twice."""
        self.closed = True
        if self.engine.running:
            self.engine.forget(self.id, self.close_call)

    def forgotten(self, owner: object) -> None:
        """Close without waiting, and warn; called by finalizers. A forked child leaves this to the parent process."""
        if self._owner_pid == os.getpid() and self.begin_close():
            if self.engine.remote and sys.is_finalizing():
                return  # it lives on at the server until its lifetime is over; programs that know its id may connect
            self.engine.forget(self.id, self.close_call)
            warnings.warn(
                f"{type(owner).__name__} {self.id} was never closed", ResourceWarning, source=owner, stacklevel=3
            )


class HandleOwner(Protocol):
    """Has the handle of a sandbox, or will have it: an AsyncSandbox is made before its sandbox is."""

    def _created(self) -> SandboxHandle:
        """Return the handle. Raises SandboxClosed before the sandbox was created."""


class SandboxHandle(_EngineObject):
    """A sandbox of an engine."""

    close_call = calls.CLOSE

    def __init__(self, engine: Engine, sandbox_id: str, *, owned: bool = True, tools: Toolset = NO_TOOLS) -> None:
        super().__init__(engine, sandbox_id, owned=owned)
        self.tools = tools  # tools whose calls are answered from here
        # Only on the way to a server can cells overtake one another, or lose the connection to their caller.
        self.cell_order = CellOrder() if engine.remote else None
        self._merged_into: str | None = None

    def _created(self) -> SandboxHandle:
        return self

    def open(self) -> str:
        """Return the id if the sandbox can be used.

        Raises SandboxClosed if it is closed or merged, and what ``Engine.check`` raises if the engine is gone or
        belongs to a parent process.
        """
        self.engine.check()
        if self._merged_into is not None:
            raise SandboxClosed(f"sandbox {self.id} was merged; its state continues in sandbox {self._merged_into}")
        if self.closed:
            raise SandboxClosed(f"sandbox {self.id} is closed")
        return self.id

    def tool_calls(self, on_loop: bool, in_callers_thread: bool = False) -> ToolCallRunner | None:
        """Return what answers the tool calls of a cell that is about to run, None if there are no tools.

        ``on_loop``: the cell runs on an event loop. ``in_callers_thread``: tools may run in the thread that waits for
        the cell, because that thread waits for nothing else.
        """
        if not self.tools:
            return None
        # Imported when needed: most programs have no tools.
        from ramet.client.tools.call_runner import ToolCallRunner

        return ToolCallRunner(self, on_loop, in_callers_thread)

    def related(self, other: object, argument: str) -> SandboxHandle:
        """Return the handle of another sandbox of the same engine, given as an argument. Raises InvalidArgument."""
        handle = getattr(other, "_handle", None)
        if not isinstance(handle, SandboxHandle):
            made = Words("one that was not created yet") if hasattr(other, "_handle") else kind_of(other)
            raise must(argument, "be a Sandbox or an AsyncSandbox that was created", made)
        self._check_engine(handle, argument)
        return handle

    def restorable(self, snapshot: object, argument: str = "snapshot") -> str:
        """Return the id of an open snapshot of the same engine, given as an argument.

        Raises InvalidArgument for anything else, and SandboxClosed for a snapshot that is closed.
        """
        handle = snapshot_handle(snapshot, argument)
        self._check_engine(handle, argument)
        return handle.open()

    def _check_engine(self, other: _EngineObject, argument: str) -> None:
        if other.engine.place != self.engine.place:
            raise wrong_argument(
                argument, f"{argument} must belong to the same engine; {other.id} belongs to another one"
            )

    @property
    def state(self) -> str:
        if self._merged_into is not None:
            return "merged"
        return "closed" if self.closed else "open"

    def merged(self, into: SandboxHandle) -> None:
        """Mark as merged: the state lives on under the other id, so nothing is left to close."""
        self.closed = True
        self._merged_into = into.id


class SnapshotHandle(_EngineObject):
    """A snapshot of an engine."""

    close_call = calls.DROP

    def open(self) -> str:
        """Return the id if the snapshot can be used. Raises as ``SandboxHandle.open`` does."""
        self.engine.check()
        if self.closed:
            raise SandboxClosed(f"snapshot {self.id} is closed")
        return self.id


def snapshot_handle(snapshot: object, argument: str) -> SnapshotHandle:
    """Return the handle of a Snapshot or AsyncSnapshot, given as an argument. Raises InvalidArgument."""
    handle = getattr(snapshot, "_snapshot", None)
    if not isinstance(handle, SnapshotHandle):
        raise must(argument, "be a Snapshot or an AsyncSnapshot", kind_of(snapshot))
    return handle
