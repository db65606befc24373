"""The server's connections to an engine: what a call that is given up had sent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from ramet.doors.http.engine_link.link import EngineCall, EngineConnections
from ramet.protocol import calls
from ramet.protocol.frames import encode
from tests.waiting import settle

WAIT_SECONDS = 60
# More than the socket below holds: the rest waits in the transport.
PIECES = [encode(calls.CHUNK, {}, bytes([number]) * 60_000) for number in range(4)]


async def begun_call() -> tuple[EngineCall, socket.socket]:
    """A call to an engine that reads nothing yet."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)

    async def introduce() -> socket.socket:
        return ours

    link = EngineConnections()
    link.up = True
    link._introduce = introduce
    call = await link.call().__aenter__()
    for piece in PIECES:
        call.send_nowait(piece)
    return call, theirs


async def read_to_the_end(engine: socket.socket) -> bytes:
    read = b""
    while data := await asyncio.get_running_loop().sock_recv(engine, 1 << 20):
        read += data
    return read


async def given_up_after_a_flush() -> bytes:
    call, engine = await begun_call()
    with engine:
        async with asyncio.timeout(WAIT_SECONDS):
            flushed = asyncio.ensure_future(call.flush())
            flushed.add_done_callback(lambda _: call.close())
            return await read_to_the_end(engine)


async def flushed_to_nobody() -> bool:
    """Whether a flush to an engine that goes away meanwhile ends by itself, and well."""
    call, engine = await begun_call()
    flushed = asyncio.ensure_future(call.flush())
    await settle()  # more is sent than the socket holds
    assert not flushed.done()
    engine.close()
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.wait([flushed])
    call.close()
    return flushed.exception() is None


MakeLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])


@LOOPS
def test_what_was_sent_before_a_call_is_given_up_reaches_the_engine(loop_factory: MakeLoop) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(given_up_after_a_flush()) == b"".join(PIECES)


@LOOPS
def test_nobody_waits_for_an_engine_that_is_gone(loop_factory: MakeLoop) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(flushed_to_nobody())
