"""Tool calls where an event loop is running: each is a coroutine, and those awaited together run together.

Uses only methods that every kind of loop has (asyncio's own, uvloop).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ramet_guest.tools.calls import Unanswered, broken_off, connections, explained, hang_up, read
from ramet_guest.tools.errors import ToolError
from ramet_guest.tools.frames import READ_BYTES, GuestToolAnswer

if TYPE_CHECKING:
    from _socket import socket

# The engine accepts 64 connections per sandbox: leave some to child processes.
CALLS_AT_ONCE = 56
# Pause between two attempts to connect while the engine's queue is full.
SECONDS_TO_WAIT = 0.01


class Slots(asyncio.Semaphore):
    """Limits the calls of one loop. While calls wait for their turn, a free connection is soon taken again."""

    def __init__(self) -> None:
        super().__init__(CALLS_AT_ONCE)
        self.calls = 0


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, Slots] = WeakKeyDictionary()


async def call(tool: str, request: bytes) -> tuple[Any, ToolError | None]:
    """Makes a call and waits for it. Returns its value or its error."""
    loop = asyncio.get_running_loop()
    slots = _slots.get(loop)
    if slots is None:
        slots = _slots[loop] = Slots()
    slots.calls += 1
    try:
        async with slots:
            answer = await ask(loop, request)
    except ToolError as error:
        error.tool = tool
        return None, error.with_traceback(None)
    finally:
        slots.calls -= 1
        # Only the last call trims: earlier, a waiting call would take the connection that was just closed.
        if not slots.calls:
            connections.trim()
    return read(tool, answer)


async def ask(loop: asyncio.AbstractEventLoop, request: bytes) -> GuestToolAnswer:
    connection: Any = connections.take()
    if connection is not None:
        try:
            return await exchange(loop, connection, request)
        except Unanswered:
            # The kept connection was dead, and no byte of an answer had arrived: try once more on a new one.
            pass
    connection = await connect()
    try:
        return await exchange(loop, connection, request)
    except Unanswered:
        raise broken_off() from None


async def connect() -> socket:
    connection = connections.make(blocking=False)
    try:
        while True:
            try:
                connection.connect(connections.address)
                return connection
            except BlockingIOError:  # a unix socket never connects later: try again
                await asyncio.sleep(SECONDS_TO_WAIT)
    except BaseException as error:
        connection.close()
        raise explained(error) from None


async def exchange(loop: asyncio.AbstractEventLoop, connection: Any, request: bytes) -> GuestToolAnswer:
    """Sends a request and reads its answer, as in `calls`.

    Loops ask for `socket.socket`, but also accept the plain `_socket.socket` under it.
    """
    begun = b""
    try:
        if connection.gettimeout() != 0:
            connection.setblocking(False)
        await loop.sock_sendall(connection, request)
        begun = await loop.sock_recv(connection, READ_BYTES)
        answer = GuestToolAnswer(begun)
        while not answer.complete:
            with answer.space() as space:
                count = await loop.sock_recv_into(connection, space)
            answer.received(count)
    except BaseException as error:
        # Also if cancelled: the rest of the answer is still to come on this connection, so it cannot be kept. Closing
        # it tells the engine that the caller is gone.
        hang_up(connection)
        raise explained(error, not begun) from None
    connections.give_back(connection, CALLS_AT_ONCE)
    return answer
