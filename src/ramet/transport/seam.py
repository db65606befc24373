"""The seam between the SDK and whatever carries its calls: an engine, and a link to it for the time of one call.

There are two of each: ``embedded`` with ``embedded_links``, and the package ``http``.
"""

from __future__ import annotations

from typing import Protocol

from ramet.protocol.frames import Frame


class Link(Protocol):
    """One call, in the caller's own thread."""

    def send(self, data: bytes) -> None:
        """A frame of the request. It may be kept back until the first ``receive``."""

    def receive(self) -> Frame:
        """The next frame of the answer, as soon as it is there."""

    def taken(self) -> None:
        """What a call of ``calls.MAKING`` made has a handle now. Who leaves without this word has it closed."""

    def leave(self) -> None:
        """The call is over, or given up if its final frame was not received: then it is undone as far as possible."""


class AsyncLink(Protocol):
    """One call, on the running event loop."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> Frame: ...

    def taken(self) -> None: ...

    def leave(self) -> None: ...


class Engine(Protocol):
    """Where sandboxes are. Safe to use from several threads."""

    @property
    def running(self) -> bool:
        """There may still be something to close."""

    @property
    def remote(self) -> bool:
        """Behind a connection that may break: cells have ids there, and paths of this host mean nothing."""

    @property
    def place(self) -> object:
        """Equal for engines that have the same sandboxes."""

    @property
    def saved_templates(self) -> set[str]:
        """Names that snapshots were saved as from here."""

    def check(self) -> None:
        """Raise if calls cannot be made from here."""

    def forget(self, some_id: str, kind: int) -> None:
        """Close a sandbox (CLOSE) or a snapshot (DROP) without waiting; for finalizers, which cannot block."""

    def link(self) -> Link: ...

    def async_link(self) -> AsyncLink: ...
