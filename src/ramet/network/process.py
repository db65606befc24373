"""The engine's side of the proxy process: starts it, exchanges messages with it, and notices its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ramet.network
from ramet.errors import RametError
from ramet.network.packets import PacketChannel
from ramet.protocol import fields

_START_SECONDS = 30.0  # a busy machine takes seconds to import the proxy's modules
_LEAVE_SECONDS = 2.0

# Isolated from any environment. argv: the package's folder, then options. The proxy puts up its own walls first of all.
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ramet.network.proxy import start; start()"

Message = Mapping[str, object]


class ProxyProcess:
    """One run of the proxy. ``on_end`` is called once, if it ends without having been asked to."""

    def __init__(self, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._reaped: asyncio.Future[int] = self._loop.create_future()
        self._closed = False
        self.missing_walls: tuple[str, ...] = ()  # restrictions that this kernel cannot enforce; known when it is ready
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        package = Path(ramet.network.__file__).resolve().parent.parent
        command = [sys.executable, "-I", "-c", _BOOT, str(package.parent), "--control", str(theirs.fileno())]
        # Close the proxy's end here once it has its copy, or we would not see it disconnect.
        with theirs:
            try:
                # It inherits the engine's standard error, which is a log that the owner can read.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
                    cwd="/",
                )
            except OSError:
                ours.close()
                raise
        # By pidfd, because the number could be reused between its death and a kill.
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._on_death)
        self._channel = PacketChannel(ours, self._receive, self._on_hang_up)

    def __repr__(self) -> str:
        return f"<ProxyProcess {self._process.pid}{' closed' if self._closed else ''}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> ProxyProcess:
        """Start a proxy. Returns when its walls are up and it is ready. Raises RametError."""
        try:
            made = cls(on_message, on_end)
        except OSError as error:
            raise RametError(f"the proxy of the sandboxes' network could not be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(_START_SECONDS):
                # Shielded: the timeout must not cancel the future that `_on_death` resolves.
                await asyncio.shield(made._ready)
        except TimeoutError:
            made.close()
            made.kill()
            await made.ended()
            raise RametError(
                f"the machine is busy: the proxy of the network was not ready within {_START_SECONDS:.0f} seconds",
                hint="try again when it is less so",
            ) from None
        except BaseException:
            made.close()
            raise
        return made

    @property
    def backlog(self) -> int:
        """How many messages it has not read yet. Those with descriptors hold duplicates of them."""
        return self._channel.backlog

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message. Messages to a proxy that has ended are lost; ``on_end`` reports its end."""
        if not self._closed:
            self._channel.send(message, descriptors)

    def close(self) -> None:
        """Ask it to end, by closing its control socket. Kill it if it has not ended after a moment."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        if not self._reaped.done():
            self._loop.call_later(_LEAVE_SECONDS, self.kill)

    async def ended(self) -> None:
        """After ``close``: wait until it is gone."""
        await asyncio.wait([self._reaped], timeout=2 * _LEAVE_SECONDS)

    def _receive(self, message: Message, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)  # it has none to send
        if message.get("say") == "ready":
            if not self._ready.done():
                self.missing_walls = fields.texts(message, "missing")
                self._ready.set_result(None)
        else:
            self._on_message(message)

    def _on_hang_up(self) -> None:
        # A proxy that has closed its socket is of no use, whatever else it does.
        self.kill()

    def kill(self) -> None:
        """Kill it. ``on_end`` follows, unless it was closed before."""
        # After reaping the pidfd is closed, and its number may be another descriptor.
        if not self._reaped.done():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _on_death(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()
        self._reaped.set_result(code)
        # Before `close`, which sets the flag.
        asked = self._closed
        self.close()
        if not self._ready.done():
            self._ready.set_exception(
                RametError(
                    f"the proxy of the sandboxes' network ended before it was ready, with code {code}",
                    hint="the engine's log has its last words",
                )
            )
            self._ready.exception()  # mark as retrieved: the caller that waited may have been cancelled
        elif not asked:
            self._on_end()
