"""Runs an engine: accepts connections of the owner until the owner ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from contextlib import suppress

from ramet.engine.calls.connection import ClientConnection
from ramet.engine.making.workshop import StartMachine
from ramet.engine.registry import Registry
from ramet.engine.settings import Settings
from ramet.errors import NO_ROOM_ERRNOS, LimitReached
from ramet.protocol import calls

_PACKET_BYTES = 256
_RETRY_SECONDS = 0.05
_NO_ROOM = LimitReached(
    "the engine has no file descriptor left for another call",
    hint="close some sandboxes, or raise the limit of open files (ulimit -Hn)",
    details={"hung_up": True},
)
_LOST = 70  # exit code


async def serve(
    primary: socket.socket,
    owner: int | None,
    start_machine: StartMachine,
    settings: Settings,
    listener: socket.socket | None = None,
) -> None:
    """Serve connections until the primary socket or the owner (a pidfd) ends, then end every sandbox.

    Connections arrive as descriptors over the primary socket, and at ``listener``, which only the owner can reach.
    """
    engine = _Engine(primary, owner, Registry(start_machine, settings), listener)
    await engine.run()


def _give_up(why: str) -> None:
    """Exit at once, so that the owner starts another engine: one that can make no sandbox is useless.

    The owner reads the message from our standard error. No cleanup is needed: we are pid 1 of a pid namespace, whose
    processes and mounts end with us, and the launcher removes the cgroups.
    """
    print(f"ramet: {why}; the engine ends, and with it its sandboxes", file=sys.stderr, flush=True)
    os._exit(_LOST)


class _Engine:
    """Owns the registry, the primary socket and the listening socket."""

    def __init__(
        self, primary: socket.socket, owner: int | None, registry: Registry, listener: socket.socket | None
    ) -> None:
        primary.setblocking(False)
        if listener is not None:
            listener.setblocking(False)
        self._listener = listener
        # A reserve for when the engine is out of descriptors: closing it makes room to accept one connection and refuse
        # it with an error. Without it the client would wait in the backlog, and accept() would fail again and again.
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if listener is not None else -1
        self._primary = primary
        self._owner = owner
        self._registry = registry
        registry.workshop.on_lost = _give_up
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._primary, self._on_primary)
        if self._listener is not None:
            loop.add_reader(self._listener, self._on_listener)
        if self._owner is not None:
            # A pidfd is readable when its process has ended. The end of the primary socket is not enough: a process
            # that the owner forked may hold a copy of it.
            loop.add_reader(self._owner, self._ended.set)
        loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        # Ctrl-C in a terminal signals the whole process group, but only the owner decides what it means. A handler
        # instead of SIG_IGN, because programs that we start would inherit SIG_IGN across exec.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        try:
            await self._ended.wait()
        finally:
            loop.remove_reader(self._primary)
            if self._listener is not None:
                loop.remove_reader(self._listener)
            if self._owner is not None:
                loop.remove_reader(self._owner)
            await self._registry.close()

    def _on_listener(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM_ERRNOS and error.errno != errno.EAGAIN:
                self._refuse()
            return
        ClientConnection(connection, self._registry)

    def _refuse(self) -> None:
        """Accept the next connection in place of the spare descriptor, send LimitReached, and close it."""
        assert self._listener is not None
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
            with suppress(OSError):
                connection, _ = self._listener.accept()
                with connection:
                    connection.setblocking(False)
                    connection.send(calls.encode_error(_NO_ROOM))
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # Something else of the engine took the descriptor in between. Stop accepting until one is free: the
            # listener would be readable all the time, and the loop would spin.
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            loop.call_later(_RETRY_SECONDS, self._listen_again)

    def _listen_again(self) -> None:
        if self._listener is not None and not self._ended.is_set():
            asyncio.get_running_loop().add_reader(self._listener, self._on_listener)

    def _on_primary(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._primary, _PACKET_BYTES, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message, descriptors = b"", []
        if message == calls.CONNECT and descriptors:
            ClientConnection(socket.socket(fileno=descriptors[0]), self._registry)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        if not message:
            self._ended.set()
        elif message.startswith(calls.FORGET):
            some_id = message[len(calls.FORGET) :].decode("ascii", "replace")
            task = asyncio.get_running_loop().create_task(self._registry.let_go(some_id))
            self._tasks.add(task)  # the loop holds tasks weakly: without this one could be collected
            task.add_done_callback(self._tasks.discard)
