"""The socket in a sandbox's network namespace at which its processes call tools, with a bound on connections."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from time import perf_counter
from typing import ClassVar

from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.engine.tools.link import LargeCallMemory, ToolConnection
from ramet.errors import SandboxLost

# Abstract unix sockets belong to a network namespace, and every pod has its own. So the name can be the same in all
# pods, and a copy of a sandbox knows it already.
_NAME = "ramet-tools"
_BACKLOG = 64
_ATTEMPTS = 5
_ACCEPTED_AT_ONCE = 16
_IDLE_SECONDS = 0.02
_NO_ROOM_SECONDS = 0.05  # until the next attempt, when every link is busy or the engine is out of descriptors


async def open_tool_socket(body: Body) -> tuple[str, socket.socket]:
    """A listening socket and its name: the usual one, or a random one if code in the sandbox has taken that.

    Raises SandboxLost if no name is free.
    """
    name = _NAME
    for _ in range(_ATTEMPTS):
        try:
            listener = await body.listen(name, _BACKLOG)
        except OSError as error:
            raise SandboxLost(f"cannot listen for tool calls in the sandbox: {error.strerror}") from None
        if listener is not None:
            return name, listener
        name = f"{_NAME}-{secrets.token_hex(8)}"
    raise SandboxLost("cannot listen for tool calls: every name is taken in the sandbox")


class ToolSocket:
    """Owns the listener and all links. At the limit, an idle link is closed to make room for a new connection."""

    _links_of_all: ClassVar[int] = 0  # over all sandboxes of this engine

    def __init__(
        self,
        listener: socket.socket,
        settings: Settings,
        on_call: Callable[[ToolConnection, str, str, bytes], None],
        on_link_end: Callable[[ToolConnection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._listener = listener
        self._settings = settings
        self._room = LargeCallMemory(settings.tool_arguments_bytes)
        self._on_call = on_call
        self._on_link_end = on_link_end
        self._links: set[ToolConnection] = set()
        self._accepting = False
        self._again: asyncio.TimerHandle | None = None
        self.accept()

    def close(self) -> None:
        self._pause()
        if self._again is not None:
            self._again.cancel()
        for link in self._links:
            link.close()
        ToolSocket._links_of_all -= len(self._links)
        self._links.clear()
        self._listener.close()

    def drop(self, link: ToolConnection) -> None:
        """Close a link, for instance because its answer broke off in the middle."""
        link.close()
        self._forget(link)

    def accept(self) -> None:
        """Accept connections again: a link has ended or has become idle."""
        if not self._accepting:
            self._accepting = True
            self._loop.add_reader(self._listener, self._on_connection)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)

    def _on_connection(self) -> None:
        # Bounded: a sandbox that connects without end must not keep the loop from the others.
        for _ in range(_ACCEPTED_AT_ONCE):
            leaving = None
            if len(self._links) >= self._most:
                leaving = self._longest_idle()
                if leaving is None:
                    self._rest()
                    return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors
                self._rest()
                return
            # Only now: accept() may find that the client has gone, and then no link need make room.
            if leaving is not None:
                self.drop(leaving)
            accepted.setblocking(False)
            ToolSocket._links_of_all += 1
            self._links.add(ToolConnection(accepted, self._room, self._on_call, self._on_end))

    @property
    def _most(self) -> int:
        """The links that this sandbox may have: fewer while all sandboxes together have many."""
        settings = self._settings
        crowded = ToolSocket._links_of_all >= settings.all_tool_links
        return settings.few_tool_links if crowded else settings.tool_links

    def _rest(self) -> None:
        """Stop accepting until a link ends. The timer is for links of other sandboxes, whose end we do not see."""
        self._pause()
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_later(_NO_ROOM_SECONDS, self.accept)

    def _longest_idle(self) -> ToolConnection | None:
        # Not one that was used just now: its caller is likely to use it again.
        moment = perf_counter() - _IDLE_SECONDS
        idle = (link for link in self._links if link.idle_since(moment))
        return min(idle, key=lambda link: link.used, default=None)

    def _on_end(self, link: ToolConnection) -> None:
        self._forget(link)
        self._on_link_end(link)

    def _forget(self, link: ToolConnection) -> None:
        if link in self._links:
            self._links.remove(link)
            ToolSocket._links_of_all -= 1
            self.accept()
