"""Supervises the proxy process of one engine: starts it on demand, restarts it when it dies, and repeats its state."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ramet.engine.network.proxy_sockets import ProxySockets
from ramet.engine.settings import Settings
from ramet.errors import EngineClosed, ProtocolError
from ramet.network.process import Message, ProxyProcess
from ramet.protocol import fields

if TYPE_CHECKING:
    from ramet.engine.network.exposed_ports import EngineExposure
    from ramet.network.secrets.certificates import Authority

_DIED = "the proxy ended, and was started again"
_CLOSED = "the sandbox's network was closed"
_ASK_SECONDS = 5.0  # between health checks
_SILENCES_AT_MOST = 3  # unanswered health checks; more than one, because a machine that was suspended misses one
_BACKLOG_AT_MOST = 4096  # unread messages; a restarted proxy is told of a thousand sandboxes at once
_FAR_BEHIND = 64  # unread messages from which on less urgent ones wait


class ProxyReports(Protocol):
    """What the proxy handle needs of a sandbox: its current rules, and callbacks for the proxy's reports."""

    def told(self) -> dict[str, object]:
        """The current rules, secrets and used bytes."""

    def tried(self, peer: int, message: Message) -> None: ...
    def counted(self, peer: int, message: Message) -> None: ...
    def not_told(self, count: int) -> None: ...
    def ended(self, peer: int, why: str) -> None: ...


class ProxiedSandbox:
    """The registration of a sandbox at the proxy: its sockets, under a number that is never used again.

    Because numbers are not reused, a late report cannot be taken for one about another sandbox or another life.
    """

    def __init__(self, number: int, proxy_sockets: ProxySockets, reports: ProxyReports, like: int | None) -> None:
        self.number = number
        self.proxy_sockets = proxy_sockets
        self.reports = reports
        self.like = like


Process = Callable[[Callable[[Message], None], Callable[[], None]], Awaitable[ProxyProcess]]


class ProxyHandle:
    """Supervises the proxy process. Owned by the workshop.

    Runs while somebody holds it (``hold``, ``release``), and for some seconds afterwards.

    The engine keeps all state: if the process dies, the next one is told everything again.
    """

    def __init__(
        self, settings: Settings, start: Process = ProxyProcess.start, ask_seconds: float = _ASK_SECONDS
    ) -> None:
        self._settings = settings
        self._ask_seconds = ask_seconds
        self._start = start
        self._process: ProxyProcess | None = None
        self._starting: asyncio.Task[None] | None = None
        self._failures = 0  # deaths since it last served for a while; each delays the next start
        self._holders = 0
        self._idle: asyncio.TimerHandle | None = None
        self._asking: asyncio.TimerHandle | None = None
        self._silences = 0  # health checks in a row without any message from the proxy
        self._numbers = itertools.count(1)
        self._peers: dict[int, ProxiedSandbox] = {}
        self._leaving: dict[int, ProxiedSandbox] = {}  # closed, but reports about them may still be on their way
        self._exposures: dict[int, EngineExposure] = {}
        self._flushes: dict[int, asyncio.Future[None]] = {}
        self._authority: asyncio.Task[Authority] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<ProxyHandle {self._process or 'not running'}, {len(self._peers)} sandboxes, {self._holders} holders>"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def missing_walls(self) -> Sequence[str]:
        """The walls around the proxy that this kernel does not support."""
        return () if self._process is None else self._process.missing_walls

    # The process

    def hold(self) -> None:
        """Keep the process running until ``release``. Does not start it: see ``started``."""
        self._holders += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def release(self) -> None:
        """Give up one hold. The last one ends the process after a while, so that the next sandbox finds it running."""
        self._holders -= 1
        if self._holders == 0 and not self._closed:
            self._idle = asyncio.get_running_loop().call_later(self._settings.proxy_idle_seconds, self._stop)

    async def started(self) -> None:
        """Wait until a proxy serves. The caller must hold it. Raises EngineClosed, or the error of the start."""
        if self._process is not None:
            return
        if self._closed:
            raise EngineClosed("the engine is closed")
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._begin())
        # All callers share one start. Shielded: one that is cancelled must not cancel it for the others.
        await asyncio.shield(self._starting)

    async def _begin(self) -> None:
        process = await self._start(self._on_message, self._on_end)
        if self._closed or self._holders == 0:  # closed, or released by all, while the process was starting
            process.close()
            return
        self._process = process
        self._silences = 0
        self._ask_later()
        if self._authority is not None and self._authority.done() and self._authority.exception() is None:
            self._tell_authority(self._authority.result())
        # New numbers: this process counts its entries from 1 again, and the log must not mix them with old ones.
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.number = next(self._numbers)
            self._peers[peer.number] = peer
            self._tell_open(peer)
        for exposure in self._exposures.values():
            exposure.tell()

    def _ask_later(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        self._asking = asyncio.get_running_loop().call_later(self._ask_seconds, self._ask)

    def _ask(self) -> None:
        """Check that the proxy still answers, and kill it if not: hostile input might keep it busy for ever."""
        if self._process is None:
            return
        if self._silences >= _SILENCES_AT_MOST:
            print(f"ramet: the proxy ({self._process.pid}) did not answer, and is ended", file=sys.stderr)
            self._process.kill()
            return
        self._silences += 1
        self._flush()
        self._ask_later()

    @property
    def behind(self) -> bool:
        """Whether many messages to the proxy are unread; what can wait should then wait."""
        return self._process is not None and self._process.backlog > _FAR_BEHIND

    def _stop(self) -> None:
        """End the process, because nobody has held it for a while."""
        self._idle = None
        self._stop_asking()
        # None first: a sandbox that needs a proxy from now on starts another one.
        process, self._process = self._process, None
        self._give_up_flushes()
        if process is not None:
            process.close()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _on_end(self) -> None:
        """The process has died, or could not be restarted: report it to all sandboxes and plan the next start."""
        self._stop_asking()
        self._process = None
        for peer in self._peers.values():
            peer.reports.ended(peer.number, _DIED)
        self._give_up_flushes()
        if self._holders and not self._closed:
            # The first restart comes at once; a proxy that dies again and again must not take a processor.
            delay = min(self._settings.proxy_again_seconds * self._failures, self._settings.proxy_idle_seconds)
            self._failures += 1
            asyncio.get_running_loop().call_later(delay, self._again)

    def _again(self) -> None:
        # During the delay the last holder may have left, or a create may have started the process already.
        if self._holders and not self._closed and self._process is None:
            task = asyncio.ensure_future(self.started())
            task.add_done_callback(self._on_started_again)

    def _on_started_again(self, task: asyncio.Future[None]) -> None:
        if task.cancelled() or task.exception() is None:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.proxy_idle_seconds, self._forgive)
        else:
            print(f"ramet: {task.exception()}", file=sys.stderr)
            self._on_end()

    def _forgive(self) -> None:
        self._failures = 0

    async def close(self) -> None:
        """End the process and wait for its end. ``_closed`` first: a start that is under way must see it."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        self._give_up_flushes()
        self._stop_asking()
        # A process that is still starting is not in `_process` yet: only the task that starts it can end it.
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        process, self._process = self._process, None
        if process is not None:
            process.close()
            await process.ended()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message to the running process. Without one it is dropped: the next process is told everything."""
        if self._process is None:
            return
        if self._process.backlog >= _BACKLOG_AT_MOST:  # it does not read its messages: start over with another
            self._process.kill()
            return
        self._process.send(message, descriptors)

    # Sandboxes

    def add(self, proxy_sockets: ProxySockets, reports: ProxyReports, like: int | None) -> ProxiedSandbox:
        """Register a sandbox. ``like``: the number of one whose looked-up names its memory may contain."""
        peer = ProxiedSandbox(next(self._numbers), proxy_sockets, reports, like)
        self._peers[peer.number] = peer
        self._tell_open(peer)
        return peer

    def change(self, peer: ProxiedSandbox) -> None:
        """Send the sandbox's current rules and secrets."""
        self.send({"do": "change", "id": peer.number, **peer.reports.told()})

    def remove(self, peer: ProxiedSandbox) -> None:
        """Unregister a sandbox; its connections end. The caller still owns its sockets."""
        if self._peers.pop(peer.number, None) is not None:
            # Reports that the proxy sent before it reads this message still arrive; the flush behind it ends them.
            self._leaving[peer.number] = peer
            self.send({"do": "close", "id": peer.number})
            self._flush().add_done_callback(lambda _: self._on_left(peer))

    def _on_left(self, peer: ProxiedSandbox) -> None:
        del self._leaving[peer.number]
        peer.reports.ended(peer.number, _CLOSED)

    def _tell_open(self, peer: ProxiedSandbox) -> None:
        # A number that this process does not know means nothing to it.
        like = peer.like if peer.like in self._peers else None
        message = {"do": "open", "id": peer.number, "like": like, **peer.reports.told()}
        names = list(peer.proxy_sockets.sockets)
        self.send({**message, "listeners": names}, tuple(peer.proxy_sockets.sockets[name].fileno() for name in names))

    async def flush(self) -> None:
        """Wait until the proxy has reported all that it has seen and applied all that it was sent, or a timeout."""
        await asyncio.wait([self._flush()], timeout=self._settings.proxy_flush_seconds)

    def _flush(self) -> asyncio.Future[None]:
        """A future that is done when the proxy has answered a flush, or has ended."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._process is None:
            told.set_result(None)
        else:
            ticket = next(self._numbers)
            self._flushes[ticket] = told
            self.send({"do": "flush", "ticket": ticket})
        return told

    def _give_up_flushes(self) -> None:
        for told in self._flushes.values():
            told.set_result(None)
        self._flushes.clear()

    # Certificates

    async def authority(self) -> Authority:
        """The certificate authority of this engine, made at first use. The proxy has it when this returns."""
        if self._authority is None or (self._authority.done() and self._authority.exception() is not None):
            self._authority = asyncio.create_task(self._make_authority())
        # Shared by all sandboxes with secrets: one that is cancelled must not cancel it for the others.
        return await asyncio.shield(self._authority)

    async def _make_authority(self) -> Authority:
        authority = await asyncio.to_thread(_make_authority)
        self._tell_authority(authority)
        return authority

    def _tell_authority(self, authority: Authority) -> None:
        self.send({"do": "authority", "authority": authority.header()})

    # Ports that are exposed

    def next_number(self) -> int:
        return next(self._numbers)

    def expose(self, exposure: EngineExposure) -> None:
        self._exposures[exposure.number] = exposure
        exposure.tell()

    def unexpose(self, exposure: EngineExposure) -> None:
        if self._exposures.pop(exposure.number, None) is not None:
            self.send({"do": "unexpose", "exposure": exposure.number})

    # Messages of the proxy. It parses bytes of strangers and may have been taken over: every field is checked.

    def _on_message(self, message: Message) -> None:
        """Handle one message. Raises ProtocolError for nonsense, which ends the process."""
        self._silences = 0  # any message proves that the proxy is alive
        say = fields.text(message, "say")
        if say == "flushed":
            # None: the ticket belongs to a flush that was given up, or the proxy made it up.
            told = self._flushes.pop(fields.whole(message, "ticket"), None)
            if told is not None:
                told.set_result(None)
        elif say == "failed" and "exposure" not in message:
            print(f"ramet: {fields.text(message, 'why'):.500}", file=sys.stderr)
        elif say in ("exposed", "failed", "more"):
            exposure = self._exposures.get(fields.whole(message, "exposure"))
            if exposure is not None:
                exposure.heard(say, message)
        elif say in ("tried", "counted", "dropped"):
            number = fields.whole(message, "id")
            peer = self._peers.get(number) or self._leaving.get(number)
            if peer is not None:  # else a late report about a life that is over
                self._on_attempt(peer, say, message)
        else:
            raise ProtocolError(f"the proxy says {say!r:.40}")

    def _on_attempt(self, peer: ProxiedSandbox, say: str, message: Message) -> None:
        if say == "tried":
            peer.reports.tried(peer.number, message)
        elif say == "counted":
            peer.reports.counted(peer.number, message)
        else:
            peer.reports.not_told(fields.natural(message, "count"))


def _make_authority() -> Authority:
    # Imported here: an engine whose sandboxes have no secrets never loads the library for certificates.
    from ramet.network.secrets.certificates import Authority

    return Authority.make()
