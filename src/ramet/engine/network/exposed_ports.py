"""Ports of a sandbox that the host can connect to: through a listener on the host's loopback, or by a single dial."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from ramet.engine.network.proxy import ProxyHandle
from ramet.engine.seams import Body
from ramet.errors import LimitReached, RametError, SandboxClosed, Unreachable
from ramet.network.process import Message
from ramet.protocol import fields

PORTS_AT_MOST = 64
_BACKLOG = 128
_SOCKETS_AT_ONCE = 8
_ANSWER_SECONDS = 10.0
_DIAL_SECONDS = 5.0
_BEHIND_SECONDS = 0.1


class EngineExposure:
    """One exposed port. The engine owns the listener on the host, so the host port survives a restart of the proxy.

    The proxy has no access to the pod's network. The engine makes unconnected sockets inside the pod and sends them to
    the proxy, a few at a time; the proxy connects one of them for each client.
    """

    def __init__(self, proxy: ProxyHandle, body: Body, port: int, listener: socket.socket) -> None:
        self.number = proxy.next_number()
        self.port = port
        self.listener = listener
        self.said: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._proxy = proxy
        self._body = body
        self._first: list[socket.socket] = []
        self._giving: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def host_port(self) -> int:
        return int(self.listener.getsockname()[1])

    async def open(self) -> None:
        """Make the first sockets and tell the proxy. ``said`` is done when the proxy has answered.

        Raises SandboxClosed if the exposure was closed meanwhile.
        """
        self._first = await _plain_sockets(self._body)
        if self._closed:  # close() ran during the await above and could not know of these sockets
            self.close()
            raise SandboxClosed("the sandbox was closed before its port was exposed")
        self._proxy.expose(self)

    def tell(self) -> None:
        """Announce the port to a proxy that does not know it yet: after ``open``, and after a restart of the proxy."""
        message = {"do": "expose", "exposure": self.number, "port": self.port}
        first, self._first = self._first, []
        # Sending duplicates the descriptors; ours of the plain sockets are closed, the listener's stays.
        self._proxy.send(message, (self.listener.fileno(), *(each.fileno() for each in first)))
        _close_all(first)
        if not first:  # a restarted proxy: the first sockets went to the one before
            self._give()

    def heard(self, say: str, message: Message) -> None:
        """Handle a message of the proxy about this port: it is exposed, it failed, or it needs more sockets."""
        if say == "more":
            self._give()
        elif not self.said.done():
            if say == "exposed":
                self.said.set_result(None)
            else:
                why = fields.text(message, "why")
                self.said.set_exception(RametError(f"port {self.port} could not be exposed: {why:.500}"))
                # Mark the exception as retrieved: the caller may have been cancelled, and asyncio would complain.
                self.said.exception()

    def _give(self) -> None:
        # One task at a time: a proxy that asks again and again gets one batch per round, not one for each request.
        if self._giving is None or self._giving.done():
            self._giving = asyncio.create_task(self._give_more())

    async def _give_more(self) -> None:
        # Descriptors in unread messages count against the engine's uid. A proxy that asks for sockets and does not read
        # its messages must not collect them.
        while self._proxy.behind:
            await asyncio.sleep(_BEHIND_SECONDS)
        try:
            made = await _plain_sockets(self._body)
        except RametError:
            return  # the pod is ending, and the exposure with it
        self._proxy.send({"do": "sockets", "exposure": self.number}, tuple(each.fileno() for each in made))
        _close_all(made)

    def close(self, keep_listener: bool = False) -> None:
        """End the exposure. With ``keep_listener`` the host port stays open for the next body of the sandbox."""
        self._closed = True
        self._proxy.unexpose(self)
        if self._giving is not None:
            self._giving.cancel()
        _close_all(self._first)
        self._first = []
        if not keep_listener:
            self.listener.close()


class Exposures:
    """The exposed ports of one sandbox. They belong to its id: new connections go to whatever body it has then.

    ``_turn`` serialises changes. Two calls for one port would otherwise both find it unknown and open two listeners,
    and a call could see the ports half moved while another body takes over.
    """

    def __init__(self, proxy: ProxyHandle, body: Body) -> None:
        self._proxy = proxy
        self._body = body
        self._by_port: dict[int, EngineExposure] = {}
        self._turn = asyncio.Lock()
        self._moving: asyncio.Task[None] | None = None
        self._suspended = False  # its listeners are watched by the engine
        self._closed = False

    def __repr__(self) -> str:
        return f"<Exposures {sorted(self._by_port)}>"

    async def expose(self, port: int) -> int:
        """Expose a port and return its port on the host's loopback. Exposing it again returns the same one.

        Raises SandboxClosed, LimitReached, or RametError when the proxy fails.
        """
        async with self._turn:
            known = self._by_port.get(port)
            if known is not None:
                return known.host_port
            if self._closed:
                raise SandboxClosed("cannot expose a port: the sandbox was closed")
            if len(self._by_port) >= PORTS_AT_MOST:
                raise LimitReached(
                    f"the sandbox has {PORTS_AT_MOST} exposed ports, which is the limit", hint="close one first"
                )
            return (await self._expose(port, _listener())).host_port

    async def _expose(self, port: int, listener: socket.socket) -> EngineExposure:
        exposure = EngineExposure(self._proxy, self._body, port, listener)
        # Held before the first await: the proxy may be about to end because its last sandbox has just gone.
        self._proxy.hold()
        try:
            await self._proxy.started()
            await exposure.open()
            async with asyncio.timeout(_ANSWER_SECONDS):
                await exposure.said
            if self._closed:  # close() ran during one of the awaits above, before this port was in `_by_port`
                raise SandboxClosed("the sandbox was closed before its port was exposed")
        except BaseException as error:
            exposure.close()
            self._proxy.release()
            if isinstance(error, TimeoutError):
                raise RametError(f"port {port} could not be exposed: the proxy did not answer") from None
            raise
        self._by_port[port] = exposure
        return exposure

    async def unexpose(self, port: int) -> None:
        """Close an exposed port. Does nothing if the port is not exposed."""
        async with self._turn:
            exposure = self._by_port.pop(port, None)
            if exposure is not None:
                asyncio.get_running_loop().remove_reader(exposure.listener)
                exposure.close()
                self._proxy.release()

    async def settled(self) -> None:
        """Wait until all ports lead to the present body."""
        if self._moving is not None and not self._moving.done():
            await asyncio.wait([self._moving])

    def suspend(self, on_connection: Callable[[], None]) -> None:
        """The sandbox has no body until ``renew``: connections wait, and the first one calls ``on_connection``.

        Only when ``settled``.
        """
        for exposure in self._by_port.values():
            exposure.close(keep_listener=True)
            asyncio.get_running_loop().add_reader(exposure.listener, self._knock, on_connection)
        self._suspended = True

    def _knock(self, on_connection: Callable[[], None]) -> None:
        self._stop_watching()  # the connection stays in the backlog, and would call it again and again
        on_connection()

    def _stop_watching(self) -> None:
        if self._suspended:
            self._suspended = False
            for exposure in self._by_port.values():
                asyncio.get_running_loop().remove_reader(exposure.listener)

    def renew(self, body: Body) -> None:
        """Point the ports at the body that has replaced the previous one, without waiting for the proxy."""
        self._stop_watching()
        self._body = body
        if self._by_port:
            self._moving = asyncio.create_task(self._move())

    async def _move(self) -> None:
        async with self._turn:
            for port, exposure in list(self._by_port.items()):
                del self._by_port[port]
                exposure.close(keep_listener=True)
                try:
                    await self._expose(port, exposure.listener)
                except RametError:
                    pass  # the sandbox was closed meanwhile
                finally:
                    self._proxy.release()  # the hold of the previous exposure; `_expose` took one of its own

    def close(self) -> None:
        """Close all ports. Does not wait for ``_turn``: a call that holds it sees ``_closed`` and cleans up itself."""
        self._closed = True
        self._stop_watching()
        if self._moving is not None:
            self._moving.cancel()
        for exposure in self._by_port.values():
            exposure.close()
            self._proxy.release()
        self._by_port.clear()


async def dial(body: Body, port: int, name: str) -> socket.socket:
    """Connect to a port on the loopback of a pod. Raises Unreachable if nothing listens there."""
    made = await body.plain_socket()
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    except (OSError, TimeoutError):
        made.close()
        raise Unreachable(f"nothing listens on port {port} of sandbox {name}") from None
    except BaseException:
        made.close()
        raise
    return made


def _listener() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        made.bind(("127.0.0.1", 0))
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise LimitReached(f"cannot listen on a port of the host's loopback: {error.strerror}") from None
    return made


async def _plain_sockets(body: Body) -> list[socket.socket]:
    made: list[socket.socket] = []
    try:
        for _ in range(_SOCKETS_AT_ONCE):
            made.append(await body.plain_socket())
    except BaseException:
        _close_all(made)
        raise
    return made


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()
