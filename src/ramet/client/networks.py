"""The network of a sandbox, and what it shows to the host, for programs that wait."""

from __future__ import annotations

from types import TracebackType

from ramet.client import blocking
from ramet.client.handle import Handle, behind
from ramet.client.network_operations import Connection
from ramet.errors import EngineClosed, EngineLost, RametError, SandboxClosed


class SandboxNetwork:
    """The network of a sandbox that was made with ``network=``: read and change its rules while it runs."""

    def __init__(self, handle: Handle) -> None:
        self._engine = handle.engine
        self._open = handle.open
        self._id = handle.id

    def __repr__(self) -> str:
        try:
            state = blocking.perform(self._engine, self._open().network())
        except RametError as error:  # it is closed, or was made without a network
            return f"<SandboxNetwork of {self._id}, {error.message}>"
        allowed = ", ".join(state.rules) or "nothing"
        denied = f", denied {', '.join(state.denied)}" if state.denied else ""
        return f"<SandboxNetwork of {self._id}, allowed {allowed}{denied}, {len(state.log)} in its log>"

    def log(self) -> list[Connection]:
        """The last 10 000 connections that code tried to make, oldest first; see ``dropped``."""
        return blocking.perform(self._engine, self._open().network()).log

    @property
    def dropped(self) -> int:
        """Number of attempted connections that are not in the log: older ones, and refusals that came too fast."""
        return blocking.perform(self._engine, self._open().network()).dropped

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that allow connections now; they include ``"open"`` if every public host is allowed."""
        return blocking.perform(self._engine, self._open().network()).rules

    @property
    def denied(self) -> tuple[str, ...]:
        """The rules that refuse connections now; they win over rules that allow."""
        return blocking.perform(self._engine, self._open().network()).denied

    def allow(self, *rules: str) -> None:
        """Allow these rules from now on, even if the same rule was denied before."""
        blocking.perform(self._engine, self._open().change_network(allow=rules))

    def deny(self, *rules: str) -> None:
        """Refuse these rules from now on, whatever else is allowed. Closes open connections to these hosts."""
        blocking.perform(self._engine, self._open().change_network(deny=rules))


class Exposed:
    """A port of a sandbox that the host can connect to, at ``url``, until this or the sandbox is closed."""

    def __init__(self, handle: Handle, port: int, url: str) -> None:
        self._handle = handle
        self.port = port
        self.url = url

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"<Exposed {self.port} of {self._handle.id} at {self.url}>"

    def close(self) -> None:
        """Withdraw the URL and close the connections through it. Closing it twice, or after its sandbox, is allowed."""
        try:
            blocking.perform(self._handle.engine, self._handle.open().unexpose(self.port))
        except (SandboxClosed, EngineLost, EngineClosed):
            pass  # it was closed with its sandbox

    def __enter__(self) -> Exposed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            self.close()
