"""Ports of a sandbox that the host can connect to: on a port of its own loopback, or one connection at a time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from ramet.engine.network.proxy import Proxy
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


class Exposure:
    """One port. The engine owns the listener on the host, so that it stays the same when the proxy is started again.

    Sockets that are made in the pod, for the proxy to connect, go to it a few at a time.
    """

    def __init__(self, proxy: Proxy, body: Body, port: int, listener: socket.socket) -> None:
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
        self._first = await _plain_sockets(self._body)
        if self._closed:
            self.close()
            raise SandboxClosed("the sandbox was closed before its port was exposed")
        self._proxy.expose(self)

    def tell(self) -> None:
        """To a proxy that does not know it yet."""
        message = {"do": "expose", "exposure": self.number, "port": self.port}
        first, self._first = self._first, []
        self._proxy.send(message, (self.listener.fileno(), *(each.fileno() for each in first)))
        _close_all(first)
        if not first:
            self._give()

    def heard(self, say: str, message: Message) -> None:
        if say == "more":
            self._give()
        elif not self.said.done():
            if say == "exposed":
                self.said.set_result(None)
            else:
                why = fields.text(message, "why")
                self.said.set_exception(RametError(f"port {self.port} could not be exposed: {why:.500}"))
                self.said.exception()  # retrieved: whoever asked may have left

    def _give(self) -> None:
        if self._giving is None or self._giving.done():
            self._giving = asyncio.create_task(self._give_more())

    async def _give_more(self) -> None:
        while self._proxy.behind:  # one that asks and does not read must not collect descriptors here
            await asyncio.sleep(_BEHIND_SECONDS)
        try:
            made = await _plain_sockets(self._body)
        except RametError:
            return  # its pod ends
        self._proxy.send({"do": "sockets", "exposure": self.number}, tuple(each.fileno() for each in made))
        _close_all(made)

    def close(self, keep_listener: bool = False) -> None:
        self._closed = True
        self._proxy.unexpose(self)
        if self._giving is not None:
            self._giving.cancel()
        _close_all(self._first)
        self._first = []
        if not keep_listener:
            self.listener.close()


class Exposures:
    """Those of one sandbox. They belong to its id; another body under it gets the connections that come then."""

    def __init__(self, proxy: Proxy, body: Body) -> None:
        self._proxy = proxy
        self._body = body
        self._by_port: dict[int, Exposure] = {}
        self._turn = asyncio.Lock()
        self._moving: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Exposures {sorted(self._by_port)}>"

    async def expose(self, port: int) -> int:
        """The port of the host's loopback. Again is harmless."""
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

    async def _expose(self, port: int, listener: socket.socket) -> Exposure:
        exposure = Exposure(self._proxy, self._body, port, listener)
        self._proxy.hold()
        try:
            await self._proxy.started()
            await exposure.open()
            async with asyncio.timeout(_ANSWER_SECONDS):
                await exposure.said
            if self._closed:
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
        """One that is not exposed is no error."""
        async with self._turn:
            exposure = self._by_port.pop(port, None)
            if exposure is not None:
                exposure.close()
                self._proxy.release()

    def renew(self, body: Body) -> None:
        """Another body has taken the place of the one before."""
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
                    pass  # closed, and the body with it
                finally:
                    self._proxy.release()  # of the one before

    def close(self) -> None:
        self._closed = True
        if self._moving is not None:
            self._moving.cancel()
        for exposure in self._by_port.values():
            exposure.close()
            self._proxy.release()
        self._by_port.clear()


async def dial(body: Body, port: int, name: str) -> socket.socket:
    """A connection to what listens on the loopback of a pod."""
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
