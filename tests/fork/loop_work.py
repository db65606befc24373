"""Work that is pending in the event loop of the cells while a sandbox is copied: of each kind, and how to see it."""

from __future__ import annotations

from ramet import Sandbox
from tests.fork.relatives import run, value

# What each kind needs to begin, and an expression that is true while it goes on. Cells that await run in the same
# loop. The names are apart from those of the tests.
KINDS = {
    "task": (
        """
_loop_turns = 0
async def _loop_take_turns():
    global _loop_turns
    while True:
        _loop_turns += 1
        await asyncio.sleep(0.001)
_loop_task = asyncio.create_task(_loop_take_turns())
async def _loop_task_goes_on():
    for wanted in range(_loop_turns + 1, _loop_turns + 4):
        while _loop_turns < wanted:
            await asyncio.sleep(0.001)
    return not _loop_task.done()
""",
        "await asyncio.wait_for(_loop_task_goes_on(), 30)",
    ),
    "timer": (
        """
_loop_timer = asyncio.get_running_loop().call_later(1000, print)
await asyncio.sleep(0)
""",
        "await asyncio.sleep(0, _loop_timer in asyncio.get_running_loop()._scheduled and not _loop_timer.cancelled())",
    ),
    "server": (
        """
async def _loop_answer(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()
_loop_server = await asyncio.start_server(_loop_answer, '127.0.0.1', 0)
async def _loop_ask(reader, writer):
    writer.write(b'hello\\n')
    return await asyncio.wait_for(reader.readline(), 30) == b'HELLO\\n'
async def _loop_ask_server():
    reader, writer = await asyncio.open_connection(*_loop_server.sockets[0].getsockname())
    try:
        return await _loop_ask(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
""",
        "await _loop_ask_server()",
    ),
    "connection": (
        """
import socket
async def _loop_echo(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
_loop_ours, _loop_theirs = socket.socketpair()
_loop_echoing = asyncio.create_task(_loop_echo(*await asyncio.open_connection(sock=_loop_theirs)))
_loop_reader, _loop_writer = await asyncio.open_connection(sock=_loop_ours)
async def _loop_ask_again():
    _loop_writer.write(b'hello\\n')
    return await asyncio.wait_for(_loop_reader.readline(), 30) == b'HELLO\\n'
""",
        "await _loop_ask_again()",
    ),
}


def begin(sandbox: Sandbox, *kinds: str) -> None:
    """Work of these kinds goes on in the sandbox's loop; no kinds mean all."""
    run(sandbox, "import asyncio\n_loop_kept = ['in memory']")
    for kind in kinds or KINDS:
        run(sandbox, KINDS[kind][0])


def assert_goes_on(sandbox: Sandbox, *kinds: str) -> None:
    """The work and the variables are there, and no cell hangs."""
    assert value(sandbox, "_loop_kept") == ["in memory"]
    for kind in kinds or KINDS:
        assert value(sandbox, KINDS[kind][1]) is True, kind
