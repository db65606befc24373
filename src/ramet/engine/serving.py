"""The life of an engine: from its owner's first word to its owner's end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from ramet.engine.connection import Connection
from ramet.engine.registry import Registry, StartMachine
from ramet.engine.settings import Settings
from ramet.protocol import calls

_PACKET_BYTES = 256


async def serve(primary: socket.socket, owner: int | None, start_machine: StartMachine, settings: Settings) -> None:
    """Serve connections until the primary socket ends or the owner (a pidfd) does, then end every sandbox."""
    engine = _Engine(primary, owner, Registry(start_machine, settings))
    await engine.run()


class _Engine:
    """Owns the registry and the primary socket."""

    def __init__(self, primary: socket.socket, owner: int | None, registry: Registry) -> None:
        primary.setblocking(False)
        self._primary = primary
        self._owner = owner
        self._registry = registry
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._primary, self._on_primary)
        if self._owner is not None:
            # A pidfd is readable when its process has ended. The primary alone would not do: others may have it too.
            loop.add_reader(self._owner, self._ended.set)
        loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        # Ctrl-C in a terminal goes to the whole group; what it means is the owner's business. Not SIG_IGN, which
        # programs that are started from here would inherit.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        try:
            await self._ended.wait()
        finally:
            loop.remove_reader(self._primary)
            if self._owner is not None:
                loop.remove_reader(self._owner)
            await self._registry.close()

    def _on_primary(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._primary, _PACKET_BYTES, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message, descriptors = b"", []
        if message == calls.CONNECT and descriptors:
            Connection(socket.socket(fileno=descriptors[0]), self._registry)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        if not message:
            self._ended.set()
        elif message.startswith(calls.FORGET):
            some_id = message[len(calls.FORGET) :].decode("ascii", "replace")
            task = asyncio.get_running_loop().create_task(self._registry.forget(some_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
