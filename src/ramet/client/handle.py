"""What both faces of a sandbox share: which engine, which id, open or closed, and the warning when forgotten."""

from __future__ import annotations

import warnings

from ramet.client.checked import Checked
from ramet.errors import SandboxClosed
from ramet.transport.embedded import EmbeddedEngine


class Handle:
    """A sandbox of an engine. Owns nothing but the duty to close it."""

    def __init__(self, engine: EmbeddedEngine, sandbox_id: str) -> None:
        self.engine = engine
        self.id = sandbox_id
        self.closed = False
        self._checked = Checked(sandbox_id)

    def open(self) -> Checked:
        """The operations, if they can be carried out: the sandbox is open, and this is the process that made it."""
        self.engine.check()
        if self.closed:
            raise SandboxClosed(f"sandbox {self.id} is closed")
        return self._checked

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
