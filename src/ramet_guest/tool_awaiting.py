"""Calls of tools where an event loop is running: each is a coroutine, and those that are awaited together run together.

Only what every kind of loop has is used (asyncio's own, uvloop).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ramet_guest.tool_calls import Unanswered, broken_off, connections, explained, hang_up, read
from ramet_guest.tool_errors import ToolError
from ramet_guest.tool_frames import READ_BYTES, Answer

if TYPE_CHECKING:
    from _socket import socket

# The engine takes 64 connections of a sandbox at a time: some are left to child processes.
CALLS_AT_ONCE = 56
# Between two attempts to connect while the engine's queue is full.
SECONDS_TO_WAIT = 0.01


class Slots(asyncio.Semaphore):
    """Places for the calls of one loop. While any waits for its turn, a connection that is free is soon taken again."""

    def __init__(self) -> None:
        super().__init__(CALLS_AT_ONCE)
        self.calls = 0


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, Slots] = WeakKeyDictionary()


async def call(tool: str, request: bytes) -> tuple[Any, ToolError | None]:
    """Makes a call and waits for it; its value, or how it failed."""
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
        if not slots.calls:
            connections.trim()
    return read(tool, answer)


async def ask(loop: asyncio.AbstractEventLoop, request: bytes) -> Answer:
    connection: Any = connections.take()
    if connection is not None:
        try:
            return await exchange(loop, connection, request)
        except Unanswered:
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
            except BlockingIOError:  # of a unix socket: tried, and given up
                await asyncio.sleep(SECONDS_TO_WAIT)
    except BaseException as error:
        connection.close()
        raise explained(error) from None


async def exchange(loop: asyncio.AbstractEventLoop, connection: Any, request: bytes) -> Answer:
    """As in `tool_calls`. A loop says what kind of socket it takes, and takes the plain one under it as well."""
    begun = b""
    try:
        if connection.gettimeout() != 0:
            connection.setblocking(False)
        await loop.sock_sendall(connection, request)
        begun = await loop.sock_recv(connection, READ_BYTES)
        answer = Answer(begun)
        while not answer.complete:
            with answer.space() as space:
                count = await loop.sock_recv_into(connection, space)
            answer.received(count)
    except BaseException as error:
        hang_up(connection)
        raise explained(error, not begun) from None
    connections.give_back(connection, CALLS_AT_ONCE)
    return answer
