"""Prepares a pooled sandbox for a network: opens its proxy sockets and configures its REPL ahead of time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ramet.engine.network.proxy_sockets import PortTaken, ProxySockets
from ramet.engine.network.variables import variables
from ramet.engine.seams import Body
from ramet.errors import ForkFailed, SandboxLost
from ramet.isolation.files.skeleton import COMMAND_FOLDER
from ramet.protocol import guest
from ramet.protocol.frames import FROM_GUEST, FrameDecoder
from ramet.protocol.lazy_dataclasses import dataclass

_ANSWER_SECONDS = 10.0
_READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class PreparedNetwork:
    """Open proxy sockets, and the variables and commands that the REPL already has: those of every network."""

    proxy_sockets: ProxySockets
    variables: Mapping[str, str]
    commands: str

    def close(self) -> None:
        self.proxy_sockets.close()


async def prepare(body: Body) -> PreparedNetwork:
    """Open proxy sockets in a fresh body and set the variables of its REPL.

    Raises PortTaken, SandboxLost or TimeoutError.
    """
    proxy_sockets = await ProxySockets.open(body)
    try:
        found = variables()
        # A REPL that does not answer must not hold up the pool.
        async with asyncio.timeout(_ANSWER_SECONDS):
            await _configure(body, found)
    except BaseException:
        proxy_sockets.close()
        raise
    return PreparedNetwork(proxy_sockets, found, COMMAND_FOLDER)


async def open_proxy_sockets(body: Body, failed: str) -> None:
    """Open proxy sockets in a body whose code has run before, and keep them in ``body.prepared`` for its sandbox.

    Raises ForkFailed if that code listens on a port that the network needs.
    """
    try:
        body.prepared = PreparedNetwork(await ProxySockets.open(body), {}, COMMAND_FOLDER)
    except PortTaken as taken:
        raise ForkFailed(
            f"{failed}: its code has a socket open on loopback port {taken.port}, which the sandbox's network needs",
            hint="close that socket first, or use a sandbox without a network",
            details={"port": taken.port},
        ) from None


def take_proxy_sockets(body: Body) -> ProxySockets | None:
    """Take the proxy sockets that were opened in the body ahead of time, if there are any."""
    prepared, body.prepared = body.prepared, None
    return prepared.proxy_sockets if isinstance(prepared, PreparedNetwork) else None


async def _configure(body: Body, environment: Mapping[str, str]) -> None:
    """Send one request on the control socket and read its answer. Nobody else uses the socket yet."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(body.control, guest.configure(environment, None, commands=COMMAND_FOLDER))
    decoder = FrameDecoder(FROM_GUEST)
    while data := await loop.sock_recv(body.control, _READ_BYTES):
        for frame in decoder.feed(data):
            answer = guest.read(frame)
            if isinstance(answer, guest.Configured) and answer.error is None:
                return
            raise SandboxLost("a prepared REPL could not receive its variables")
    raise SandboxLost("a prepared REPL has ended")
