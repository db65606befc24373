"""The network of one sandbox: its rules, secrets and log, and its connection to the proxy."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ramet.engine.files.tree import SandboxTree
from ramet.engine.network.held_secrets import HeldSecret, Trace
from ramet.engine.network.log import ConnectionLog
from ramet.engine.network.proxy import ProxiedSandbox, ProxyHandle
from ramet.engine.network.proxy_sockets import PortTaken, ProxySockets
from ramet.engine.network.variables import CERTIFICATES, variables
from ramet.engine.seams import Body
from ramet.errors import RametError, SandboxLost
from ramet.network.process import Message
from ramet.protocol.network.specs import Attempt, NetworkSpec, SecretSpec

# A new sandbox's network waits at most this long for the first cell before it bothers the proxy, so that a burst of
# creates is answered first.
_IDLE_SECONDS = 0.1


class Beside(Protocol):
    """A service that lives as long as the network of one body (packages). ``open`` must not raise."""

    async def open(self) -> None: ...
    def close(self) -> None: ...


class EngineNetwork:
    """The rules, secrets and log of one sandbox id, and its current connection to the proxy.

    When another body takes over the id, the connection is made anew; rules, secrets and log stay.

    ``begin`` opens the sockets in a task of its own, so that create returns early; the first cell waits in ``opened``.
    Keeps the proxy running from construction until ``close``.
    """

    def __init__(
        self, proxy: ProxyHandle, spec: NetworkSpec, secrets: Iterable[HeldSecret] = (), owner: str = ""
    ) -> None:
        self.spec = spec
        self.owner = owner
        self.secrets = tuple(secrets)
        self.log = ConnectionLog()
        self.closed: str | None = None  # the reason, if this body can have no network at all
        self.beside: Callable[[Body], Beside] | None = None
        self._proxy = proxy
        self._like: int | None = None
        self._body: Body | None = None
        self._peer: ProxiedSandbox | None = None
        self._no_raw_tcp: str | None = None
        self._no_certificates: str | None = None
        self._opening: asyncio.Task[None] | None = None
        # Sockets, or a network to take them from, until the task `_opening` has picked them up. `_shut` closes what
        # a task that was cancelled before its first step never picked up.
        self._given: tuple[ProxySockets | None, EngineNetwork | None] = (None, None)
        self._service: Beside | None = None
        self._wanted = asyncio.Event()  # a cell waits for the network
        self._held = True
        proxy.hold()

    def __repr__(self) -> str:
        return f"<EngineNetwork {self.summary()}>"

    @classmethod
    async def make(
        cls,
        proxy: ProxyHandle,
        spec: NetworkSpec,
        secrets: Iterable[SecretSpec],
        known: Iterable[Trace] = (),
        owner: str = "",
    ) -> EngineNetwork:
        """Make a network and make sure that a proxy runs. ``known``: secrets whose placeholders are in its memory.

        Raises EngineClosed, or RametError when the proxy does not start.
        """
        traces = tuple(known)
        made = cls(proxy, spec, [HeldSecret.of(secret, traces) for secret in secrets], owner)
        try:
            await proxy.started()
        except BaseException:
            made.close()
            raise
        return made

    def for_copy(self, inherit_secrets: bool) -> EngineNetwork:
        """The network of a copy of the sandbox: the current rules, an empty log."""
        secrets = [secret.for_copy() for secret in self.secrets] if inherit_secrets else ()
        made = EngineNetwork(self._proxy, self.spec, secrets, self.owner)
        made._like = self._number()
        return made

    # The way to the proxy

    @property
    def ready(self) -> bool:
        return self._peer is not None or self.closed is not None

    @property
    def no_raw_tcp(self) -> str | None:
        """Why programs that know no proxy reach nothing, or None if they do reach what the rules allow."""
        return self.closed or self._no_raw_tcp

    def begin(
        self, body: Body, proxy_sockets: ProxySockets | None = None, sockets_of: EngineNetwork | None = None
    ) -> None:
        """Start to open proxy sockets in this body, without waiting.

        Uses ``proxy_sockets``, or those of ``sockets_of``, if given.
        """
        self._body = body
        self._close_service()
        if self.beside is not None:
            self._service = self.beside(body)
        self._given = proxy_sockets, sockets_of
        self._opening = asyncio.create_task(self._open(body, self._service))
        # Retrieves the exception: asyncio would complain if no cell ever waits for this task.
        self._opening.add_done_callback(_failed)

    def renew(
        self, body: Body, sockets_of: EngineNetwork | None = None, proxy_sockets: ProxySockets | None = None
    ) -> None:
        """Move to the body that has replaced the previous one."""
        if sockets_of is not None:
            # Its service listens in this body under the name that ours will take.
            sockets_of._close_service()
        self._like = self._number()  # before _shut, which drops the registration that has the number
        self._shut()
        self.closed = None
        self.begin(body, proxy_sockets, sockets_of)

    def suspend(self) -> None:
        """The sandbox has no body until ``renew``. Rules, secrets and the log stay."""
        self._like = self._number()  # before _shut, which drops the registration that has the number
        self._shut()
        self._opening = self._body = None

    async def opened(self) -> None:
        """Wait until the proxy sockets are open, or ``closed`` says why they will not be.

        Raises RametError if opening failed; the next call tries again. Raises SandboxLost if the network was closed.
        """
        if self._opening is None or (self._opening.done() and _failed(self._opening)):
            if self._body is None or not self._held:
                raise SandboxLost("the sandbox's network was closed")
            self.begin(self._body)
        self._wanted.set()
        opening = self._opening  # renew() may put another task in its place during the await below
        assert opening is not None
        try:
            # Shielded: several cells may wait for this task, and a cell that is cancelled must not cancel it for all.
            await asyncio.shield(opening)
        except RametError:
            raise
        except asyncio.CancelledError:
            # Either close() or renew() cancelled the opening, or our caller was cancelled: only the first is an error.
            if opening.cancelled():
                raise SandboxLost("the sandbox was closed or replaced before its network was ready") from None
            raise
        except Exception as error:
            raise SandboxLost(f"the sandbox's network could not be opened: {error}") from error

    async def _open(self, body: Body, service: Beside | None) -> None:
        (proxy_sockets, sockets_of), self._given = self._given, (None, None)
        if sockets_of is not None:
            proxy_sockets = await sockets_of._surrender()
        try:
            if proxy_sockets is not None and sockets_of is None:  # made ahead of time: the sandbox has run nothing yet
                await self._idle()
            await self._proxy.started()
            if self.secrets or self.spec.ca_pem:
                await self._show_certificates(body)
            if proxy_sockets is None:
                proxy_sockets = await ProxySockets.open(body)
        except PortTaken as taken:
            self.closed = f"{taken}: this sandbox has no network"
            self.log.append([Attempt(time.time(), "tcp", "127.0.0.1", taken.port, False, None, self.closed)])
            return
        except BaseException:
            if proxy_sockets is not None:
                proxy_sockets.close()
            raise
        # No await since the sockets were opened: a cancellation in between would leave sockets that nobody closes.
        self._no_raw_tcp = proxy_sockets.no_raw_tcp
        self._peer = self._proxy.add(proxy_sockets, self, self._like)
        if service is not None:
            await service.open()

    async def _idle(self) -> None:
        """Wait for the first cell, or a moment. Until then nothing runs inside, and the create is answered sooner."""
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _surrender(self) -> ProxySockets | None:
        """Close this network but hand over its open sockets, for another network that continues with the same body."""
        try:
            # The task may be about to open the sockets: taking `_peer` before it ends would leave them to nobody.
            if self._opening is not None:
                await asyncio.wait([self._opening])
            peer, self._peer = self._peer, None
            if peer is None:
                return None
            self._proxy.remove(peer)
            return peer.proxy_sockets
        finally:
            self.close()

    async def _show_certificates(self, body: Body) -> None:
        authority = await self._proxy.authority() if self.secrets else None
        pem = "\n".join(text for text in (authority and authority.pem, self.spec.ca_pem) if text)
        tree = SandboxTree(body.root)
        try:
            await asyncio.to_thread(_write_certificates, tree, pem)
        except OSError as error:
            # Code in the sandbox has filled its disk or put something in the way. It harms only itself: its programs
            # cannot verify the proxy's certificates.
            self._no_certificates = f"{CERTIFICATES} could not be written: {error.strerror}"
        else:
            self._no_certificates = None
        finally:
            tree.close()

    def close(self) -> None:
        """Close for good. Open connections end at once."""
        self._shut()
        if self._held:  # close() may be called twice, but the proxy counts one hold
            self._held = False
            self._proxy.release()

    def _shut(self) -> None:
        self._close_service()
        if self._opening is not None:
            self._opening.cancel()
        # A task that is cancelled before its first step has not picked these up: nobody else would close them.
        (proxy_sockets, sockets_of), self._given = self._given, (None, None)
        if proxy_sockets is not None:
            proxy_sockets.close()
        if sockets_of is not None:
            sockets_of.close()
        peer, self._peer = self._peer, None
        if peer is not None:
            self._proxy.remove(peer)
            peer.proxy_sockets.close()

    def _close_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()

    def _number(self) -> int | None:
        return self._like if self._peer is None else self._peer.number

    # Rules

    def become(self, spec: NetworkSpec) -> None:
        """Replace the rules. They apply to open connections, too; ``flush`` tells when the proxy has applied them."""
        self.spec = spec
        if self._peer is not None:
            self._proxy.change(self._peer)

    async def flush(self) -> None:
        """Wait until the proxy has reported all that it has seen, within bounds."""
        await self._proxy.flush()

    def summary(self) -> str:
        """One line for the list of walls."""
        spec = self.spec
        if self.closed is not None:
            return f"closed: {self.closed}"
        allowed = "all that is public" if spec.open else _rules(len(spec.allow))
        if spec.open and spec.allow:
            allowed += f" and {_rules(len(spec.allow))}"
        denied = f", {len(spec.deny)} denied" if spec.deny else ""
        raw = "raw TCP redirected" if self.no_raw_tcp is None else f"no raw TCP: {self.no_raw_tcp}"
        more = f"; {self._no_certificates}" if self._no_certificates is not None else ""
        if missing := self._proxy.missing_walls:
            more += f"; the proxy itself is not held from: {', '.join(missing)}"
        return f"through the proxy: {allowed}{denied}; {raw}{more}"

    # Secrets

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """The environment variables that code in the sandbox gets. ``own``: variables of the owner, which win."""
        placeholders = {secret.spec.name: secret.placeholder for secret in self.secrets}
        return variables(placeholders.items(), self.spec.ca_pem is not None, own)

    def traces(self) -> tuple[Trace, ...]:
        return tuple(secret.trace() for secret in self.secrets)

    def recognise(self, traces: Iterable[Trace]) -> None:
        """Accept the placeholders of the same secrets that are in the memory with which the sandbox continues."""
        older = {trace.digest: trace.placeholders for trace in traces}
        self.secrets = tuple(secret.knowing(older) for secret in self.secrets)

    # Called by the proxy

    def told(self) -> dict[str, object]:
        return {
            "owner": self.owner,
            "network": self.spec.header(),
            "secrets": [secret.header() for secret in self.secrets],
            "used_bytes": self.log.used_bytes,
        }

    def tried(self, peer: int, message: Message) -> None:
        self.log.tried(peer, message)

    def counted(self, peer: int, message: Message) -> None:
        self.log.counted(peer, message)

    def not_told(self, count: int) -> None:
        self.log.not_told(count)

    def ended(self, peer: int, why: str) -> None:
        self.log.ended(peer, why)


def _failed(opening: asyncio.Task[None]) -> bool:
    return opening.cancelled() or opening.exception() is not None


def _write_certificates(tree: SandboxTree, pem: str) -> None:
    """Write the bundle into the pod. Runs in a thread, because the disk of the pod may be slow."""
    from ramet.network.secrets.certificates import bundle

    data = memoryview(bundle(pem).encode())
    descriptor = tree.open_to_write(CERTIFICATES)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _rules(count: int) -> str:
    return "1 rule" if count == 1 else f"{count} rules"
