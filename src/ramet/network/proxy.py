"""The proxy's process. The engine tells it which sandboxes there are, and it connects them to what they may reach.

    python -I -c BOOT FOLDER_OF_THE_PACKAGE --control FD

Started by ``process``. It ends when the engine's end of the control socket closes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import uvloop

from ramet.errors import RametError
from ramet.network import confinement
from ramet.network.connecting.host_addresses import HostAddresses
from ramet.network.connecting.resolver import Lookups, Resolver
from ramet.network.exposed_ports import ProxyExposure
from ramet.network.limits import DescriptorBudget
from ramet.network.listeners.listeners import PodListeners
from ramet.network.packets import Message, PacketChannel, close_all
from ramet.network.peers import SandboxPeer
from ramet.network.reports import Reports
from ramet.network.secrets import spelling
from ramet.network.secrets.certificates import Authority, system_pem
from ramet.network.secrets.peer_secrets import PeerSecret
from ramet.protocol import fields
from ramet.protocol.network.specs import NetworkSpec

# With more than this many packets waiting for the engine, log entries stay in their sandboxes' reports, which are
# bounded.
_BACKLOG_AT_MOST = 64
# A sandbox may be able to provoke failures, and must not fill the engine's log with them.
_FAILURES_TOLD = 100
# Share of the descriptors; the rest is for listeners, and for connections that are accepted only to be refused.
_FOR_CONNECTIONS = 0.75


class ProxyServer:
    """All sandboxes. Owns the control socket. ``ended`` resolves when the engine is gone."""

    def __init__(self, control: socket.socket) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners: dict[int, PodListeners] = {}
        self._exposures: dict[int, ProxyExposure] = {}
        self._authority: Authority | None = None
        self._of_host = HostAddresses()
        self._resolver = Resolver()
        self._descriptors = DescriptorBudget(int(_FOR_CONNECTIONS * resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
        self._failures = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._does: dict[str, Callable[[Message, list[int]], None]] = {
            "open": self._open,
            "change": self._change,
            "close": self._close,
            "authority": self._take_authority,
            "expose": self._expose,
            "sockets": self._sockets,
            "unexpose": self._unexpose,
            "flush": self._flush,
        }
        # Large messages in a memfd are accepted from the engine only; the engine accepts none from here.
        self._channel = PacketChannel(control, self._told, self._end, takes_memory=True)

    def say(self, message: Mapping[str, object]) -> None:
        self._channel.send(message)

    def _told(self, message: Message, descriptors: list[int]) -> None:
        """Handle one message. A message that fails is answered with "failed", and the others go on."""
        try:
            self._does[fields.text(message, "do")](message, descriptors)
        except (RametError, OSError, LookupError, ValueError) as error:
            self.failed(error)
            # Without the error's own text, which may contain what was sent, such as a secret.
            self.say(
                {**_numbers_of(message), "say": "failed", "why": f"the proxy could not do it: {type(error).__name__}"}
            )
        # Handlers remove the descriptors that they take; these are left over.
        close_all(descriptors)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    # Sandboxes

    def _open(self, message: Message, descriptors: list[int]) -> None:
        number = fields.whole(message, "id")
        names = fields.texts(message, "listeners")
        peer = SandboxPeer(
            number,
            NetworkSpec.read(fields.mapping(message, "network")),
            _secrets(message),
            self._of_host,
            Reports(number, self._report),
            Lookups(self._resolver, fields.optional_text(message, "owner") or ""),
            fields.optional_whole(message, "used_bytes") or 0,
            self._descriptors,
        )
        like = fields.optional_whole(message, "like")
        if like is not None and like in self._listeners:
            # A fork keeps addresses that its parent has looked up, and programs in it may still hold them.
            peer.names = self._listeners[like].peer.names.copy()
        # The sandbox is in the table before its listeners open, so that a "close" that arrives while they do finds it.
        opened = self._listeners[number] = PodListeners(peer, lambda: self._authority, self.failed)
        listeners = {name: socket.socket(fileno=descriptors.pop(0)) for name in names if descriptors}
        self._begin(opened.open(listeners))

    def _change(self, message: Message, descriptors: list[int]) -> None:
        known = self._listeners.get(fields.whole(message, "id"))
        if known is not None:
            known.peer.change(NetworkSpec.read(fields.mapping(message, "network")), _secrets(message))

    def _close(self, message: Message, descriptors: list[int]) -> None:
        known = self._listeners.pop(fields.whole(message, "id"), None)
        if known is not None:
            known.close()
            if known.peer.secrets:
                # The cache of spellings must not keep the values of a sandbox that has ended.
                spelling.forget()

    def _take_authority(self, message: Message, descriptors: list[int]) -> None:
        self._authority = Authority.read(fields.mapping(message, "authority"))

    # Ports

    def _expose(self, message: Message, descriptors: list[int]) -> None:
        number = fields.whole(message, "exposure")
        port = fields.whole(message, "port")
        listener = socket.socket(fileno=descriptors.pop(0))
        made = ProxyExposure(port, listener, lambda: self.say({"say": "more", "exposure": number}), self.failed)
        self._exposures[number] = made
        made.add(descriptors)
        descriptors.clear()
        self._begin(self._begin_exposure(number, made))

    async def _begin_exposure(self, number: int, made: ProxyExposure) -> None:
        await made.begin()
        if self._exposures.get(number) is not made:  # unexposed while the listener opened
            return made.close()
        self.say({"say": "exposed", "exposure": number})

    def _sockets(self, message: Message, descriptors: list[int]) -> None:
        known = self._exposures.get(fields.whole(message, "exposure"))
        if known is not None:
            known.add(descriptors)
            descriptors.clear()

    def _unexpose(self, message: Message, descriptors: list[int]) -> None:
        known = self._exposures.pop(fields.whole(message, "exposure"), None)
        if known is not None:
            known.close()

    # Reports to the engine

    def _flush(self, message: Message, descriptors: list[int]) -> None:
        for known in self._listeners.values():
            known.peer.entries.flush(now=True)
        self.say({"say": "flushed", "ticket": message.get("ticket")})

    def _report(self, messages: Sequence[Mapping[str, object]], now: bool) -> bool:
        if self._channel.backlog > _BACKLOG_AT_MOST and not now:
            return False
        self._channel.send_all(messages)
        return True

    def failed(self, problem: BaseException) -> None:
        """Report an unexpected error with its place but without its message, which may contain a secret."""
        self._failures += 1
        if self._failures > _FAILURES_TOLD:
            return
        places = traceback.extract_tb(problem.__traceback__)
        where = " < ".join(f"{Path(place.filename).name}:{place.lineno}" for place in reversed(places))
        print(f"ramet proxy: {type(problem).__name__} at {where}", file=sys.stderr, flush=True)

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        # The loop keeps only weak references to tasks.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self.failed(problem)


def _secrets(message: Message) -> list[PeerSecret]:
    return [PeerSecret.read(secret) for secret in fields.array(message, "secrets") if isinstance(secret, dict)]


def _numbers_of(message: Message) -> dict[str, object]:
    return {name: message[name] for name in ("id", "exposure") if name in message}


async def _serve(control: socket.socket, missing: Sequence[str]) -> None:
    proxy = ProxyServer(control)
    loop = asyncio.get_running_loop()
    # The loop's default handler prints its context, which may contain bytes that a connection received.
    loop.set_exception_handler(
        lambda _, context: proxy.failed(context.get("exception") or RuntimeError(context.get("message")))
    )
    # Only now may the engine send sandboxes: the walls are up.
    proxy.say({"say": "ready", "missing": list(missing)})
    await proxy.ended


def start(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="ramet.network.proxy", description=__doc__)
    parser.add_argument("--control", type=int, required=True)
    chosen = parser.parse_args(arguments)
    control = socket.socket(fileno=chosen.control)
    os.set_inheritable(chosen.control, False)
    # A terminal sends it to the whole group; the engine decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Both must read files that are out of reach behind the walls.
    confinement.look_up_once()
    system_pem()  # cached from here on
    # Before uvloop starts threads: capabilities, Landlock and seccomp apply to the calling thread and its children.
    walls = confinement.lock_down()
    uvloop.run(_serve(control, walls.missing))
    # Exit without joining threads that still wait for a resolver; they hold nothing that is needed.
    os._exit(0)
