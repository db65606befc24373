"""The interface between the SDK and a transport: an engine, and a link to it for the duration of one call.

There are two implementations: ``embedded`` with ``embedded_links``, and the package ``http``.
"""

from __future__ import annotations

from typing import Protocol

from ramet.protocol.frames import Frame


class Link(Protocol):
    """One call, in the caller's own thread."""

    def send(self, data: bytes) -> None:
        """Send a frame of the request. It may be held until the first ``receive``."""

    def receive(self) -> Frame:
        """Return the next frame of the answer as soon as it has arrived."""

    def taken(self) -> None:
        """Confirm that the caller has a handle to what a call of ``calls.MAKING`` made.

        Without this, ``leave`` has it closed.
        """

    def leave(self) -> None:
        """End the call. If its final frame was not received, the call is given up and undone as far as possible."""


class AsyncLink(Protocol):
    """One call, on the running event loop."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> Frame: ...

    def taken(self) -> None: ...

    def leave(self) -> None: ...


class Engine(Protocol):
    """The place where sandboxes run. Safe to use from several threads."""

    @property
    def running(self) -> bool:
        """Whether there may still be something to close."""

    @property
    def remote(self) -> bool:
        """Whether the engine is behind a connection that may break.

        Cells then have ids, and paths of this host mean nothing.
        """

    @property
    def place(self) -> object:
        """An object that is equal for engines that have the same sandboxes."""

    @property
    def saved_templates(self) -> set[str]:
        """Names under which snapshots were saved from here."""

    def check(self) -> None:
        """Raise if this process cannot make calls."""

    def forget(self, some_id: str, kind: int) -> None:
        """Close a sandbox (CLOSE) or a snapshot (DROP) without waiting. For finalizers, which must not block."""

    def link(self) -> Link: ...

    def async_link(self) -> AsyncLink: ...
