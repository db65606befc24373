"""The network of one sandbox: what it may reach, with which secrets, what it has tried, and its way to the proxy."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ramet.engine.network.door import Door, PortTaken
from ramet.engine.network.held_secrets import HeldSecret, Trace
from ramet.engine.network.log import Log
from ramet.engine.network.proxy import Guest, Proxy
from ramet.engine.network.variables import CERTIFICATES, variables
from ramet.engine.seams import Body
from ramet.engine.tree import Tree
from ramet.errors import RametError, SandboxLost
from ramet.network.process import Message
from ramet.protocol.network import Attempt, NetworkSpec, SecretSpec

# So long a new sandbox's network waits for its first cell. Creates that come one after another are not held up by it.
_IDLE_SECONDS = 0.1


class Beside(Protocol):
    """A service for one body that goes with its network. ``open`` raises nothing."""

    async def open(self) -> None: ...
    def close(self) -> None: ...


class Network:
    """Belongs to the id of a sandbox: another body under the same id gets another door, and the rest stays.

    A door is opened while nobody waits; a cell waits for ``opened``. Holds the proxy from its making until ``close``.
    """

    def __init__(self, proxy: Proxy, spec: NetworkSpec, secrets: Iterable[HeldSecret] = (), owner: str = "") -> None:
        self.spec = spec
        self.owner = owner
        self.secrets = tuple(secrets)
        self.log = Log()
        self.closed: str | None = None  # why it leads nowhere, for good
        self.beside: Callable[[Body], Beside] | None = None
        self._proxy = proxy
        self._like: int | None = None
        self._body: Body | None = None
        self._guest: Guest | None = None
        self._no_raw_tcp: str | None = None
        self._no_certificates: str | None = None
        self._opening: asyncio.Task[None] | None = None
        self._given: tuple[Door | None, Network | None] = (None, None)
        self._service: Beside | None = None
        self._wanted = asyncio.Event()  # somebody waits for it
        self._held = True
        proxy.hold()

    def __repr__(self) -> str:
        return f"<Network {self.summary()}>"

    @classmethod
    async def make(
        cls,
        proxy: Proxy,
        spec: NetworkSpec,
        secrets: Iterable[SecretSpec],
        known: Iterable[Trace] = (),
        owner: str = "",
    ) -> Network:
        """With a proxy that runs. ``known``: what the memory of the sandbox remembers of secrets."""
        traces = tuple(known)
        made = cls(proxy, spec, [HeldSecret.of(secret, traces) for secret in secrets], owner)
        try:
            await proxy.started()
        except BaseException:
            made.close()
            raise
        return made

    def for_copy(self, inherit_secrets: bool) -> Network:
        """That of a copy of the sandbox: the rules of this moment, a log of its own."""
        secrets = [secret.for_copy() for secret in self.secrets] if inherit_secrets else ()
        made = Network(self._proxy, self.spec, secrets, self.owner)
        made._like = self._number()
        return made

    # The way to the proxy

    @property
    def ready(self) -> bool:
        return self._guest is not None or self.closed is not None

    @property
    def no_raw_tcp(self) -> str | None:
        """Why programs that know no proxy reach nothing. None: they do."""
        return self.closed or self._no_raw_tcp

    def begin(self, body: Body, door: Door | None = None, door_of: Network | None = None) -> None:
        """Open a door in this body, without waiting for it; or go on with an open one, or that of another network."""
        self._body = body
        self._close_service()
        if self.beside is not None:
            self._service = self.beside(body)
        self._given = door, door_of
        self._opening = asyncio.create_task(self._open(body, self._service))
        self._opening.add_done_callback(_failed)  # retrieved: perhaps nobody ever asks

    def renew(self, body: Body, door_of: Network | None = None, door: Door | None = None) -> None:
        """Another body has taken the place of the one before."""
        if door_of is not None:
            door_of._close_service()
        self._like = self._number()
        self._shut()
        self.closed = None
        self.begin(body, door, door_of)

    async def opened(self) -> None:
        """The door is open, or it is known why it is not to be. What failed otherwise raises, and is tried again."""
        if self._opening is None or (self._opening.done() and _failed(self._opening)):
            if self._body is None or not self._held:
                raise SandboxLost("the sandbox's network was closed")
            self.begin(self._body)
        self._wanted.set()
        opening = self._opening
        assert opening is not None
        try:
            await asyncio.shield(opening)
        except RametError:
            raise
        except asyncio.CancelledError:
            if opening.cancelled():
                raise SandboxLost("the sandbox was closed or replaced before its network was ready") from None
            raise
        except Exception as error:
            raise SandboxLost(f"the sandbox's network could not be opened: {error}") from error

    async def _open(self, body: Body, service: Beside | None) -> None:
        (door, door_of), self._given = self._given, (None, None)
        if door_of is not None:
            door = await door_of._surrender()
        try:
            if door is not None and door_of is None:
                await self._idle()
            await self._proxy.started()
            if self.secrets or self.spec.ca_pem:
                await self._show_certificates(body)
            if door is None:
                door = await Door.open(body)
        except PortTaken as taken:
            self.closed = f"{taken}: this sandbox has no network"
            self.log.append([Attempt(time.time(), "tcp", "127.0.0.1", taken.port, False, None, self.closed)])
            return
        except BaseException:
            if door is not None:
                door.close()
            raise
        self._no_raw_tcp = door.no_raw_tcp
        self._guest = self._proxy.add(door, self, self._like)
        if service is not None:
            await service.open()

    async def _idle(self) -> None:
        """Nothing runs in there yet: who has asked for it is answered before the proxy is woken."""
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _surrender(self) -> Door | None:
        """Give up the door, open, for another network that goes on with the same body."""
        try:
            if self._opening is not None:
                await asyncio.wait([self._opening])
            guest, self._guest = self._guest, None
            if guest is None:
                return None
            self._proxy.remove(guest)
            return guest.door
        finally:
            self.close()

    async def _show_certificates(self, body: Body) -> None:
        authority = await self._proxy.authority() if self.secrets else None
        pem = "\n".join(text for text in (authority and authority.pem, self.spec.ca_pem) if text)
        tree = Tree(body.root)
        try:
            await asyncio.to_thread(_write_certificates, tree, pem)
        except OSError as error:
            # Code in there has used up its disk, or put something in the way: it is the one that cannot verify then.
            self._no_certificates = f"{CERTIFICATES} could not be written: {error.strerror}"
        else:
            self._no_certificates = None
        finally:
            tree.close()

    def close(self) -> None:
        """For good. Connections end at once."""
        self._shut()
        if self._held:
            self._held = False
            self._proxy.release()

    def _shut(self) -> None:
        self._close_service()
        if self._opening is not None:
            self._opening.cancel()
        (door, door_of), self._given = self._given, (None, None)  # a task that is cancelled early never had them
        if door is not None:
            door.close()
        if door_of is not None:
            door_of.close()
        guest, self._guest = self._guest, None
        if guest is not None:
            self._proxy.remove(guest)
            guest.door.close()

    def _close_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()

    def _number(self) -> int | None:
        return self._like if self._guest is None else self._guest.number

    # Rules

    def become(self, spec: NetworkSpec) -> None:
        """Other rules from now on, for open connections too."""
        self.spec = spec
        if self._guest is not None:
            self._proxy.change(self._guest)

    async def flush(self) -> None:
        await self._proxy.flush()

    def summary(self) -> str:
        """For a list of walls."""
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
        """What code in the sandbox finds. ``own``: the owner's variables, which are left alone."""
        placeholders = {secret.spec.name: secret.placeholder for secret in self.secrets}
        return variables(placeholders.items(), self.spec.ca_pem is not None, own)

    def traces(self) -> tuple[Trace, ...]:
        return tuple(secret.trace() for secret in self.secrets)

    def recognise(self, traces: Iterable[Trace]) -> None:
        """Placeholders for the same secrets, in memory that the sandbox goes on with, go on working."""
        older = {trace.digest: trace.placeholders for trace in traces}
        self.secrets = tuple(secret.knowing(older) for secret in self.secrets)

    # What the proxy asks and says

    def told(self) -> dict[str, object]:
        return {
            "owner": self.owner,
            "network": self.spec.header(),
            "secrets": [secret.header() for secret in self.secrets],
            "used_bytes": self.log.used_bytes,
        }

    def tried(self, guest: int, message: Message) -> None:
        self.log.tried(guest, message)

    def counted(self, guest: int, message: Message) -> None:
        self.log.counted(guest, message)

    def not_told(self, count: int) -> None:
        self.log.not_told(count)

    def ended(self, guest: int, why: str) -> None:
        self.log.ended(guest, why)


def _failed(opening: asyncio.Task[None]) -> bool:
    return opening.cancelled() or opening.exception() is not None


def _write_certificates(tree: Tree, pem: str) -> None:
    """In a thread."""
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
