"""The workshop: all that it takes to make a sandbox, and a new sandbox as the destination of a bring-up."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.making.bring_up import bring_up
from ramet.engine.making.carried_state import CarriedState
from ramet.engine.making.quotas import Quotas
from ramet.engine.making.sources import TemplateSource
from ramet.engine.network.network import EngineNetwork
from ramet.engine.network.prepared import take_proxy_sockets
from ramet.engine.network.proxy import ProxyHandle
from ramet.engine.output.executions import Shelf
from ramet.engine.packages.packages import Packages
from ramet.engine.packages.requester import Requester
from ramet.engine.packages.service import PackageService
from ramet.engine.seams import Body, Machine
from ramet.engine.settings import Settings
from ramet.errors import EngineClosed
from ramet.isolation.files.walks import Walks
from ramet.protocol.values.specs import SandboxSpec

StartMachine = Callable[[], Awaitable[Machine]]


class Workshop:
    """Owns the machine, the proxy and the packages of one engine. The machine starts with the first call for it."""

    def __init__(self, start_machine: StartMachine, settings: Settings, quotas: Quotas, walks: Walks) -> None:
        self.settings = settings
        self.quotas = quotas
        self.shelf = Shelf(settings.all_executions_bytes)
        self.proxy = ProxyHandle(settings)
        self.attempts: Counter[tuple[str, bool]] = Counter()  # to connect: by owner, and whether it was allowed
        self.packages = Packages(self.hidden, self.open_host_folder, settings, walks)
        self.on_lost: Callable[[str], None] = lambda _: None  # the machine ended: nothing works any more
        self._start_machine = start_machine
        self._machine: asyncio.Task[Machine] | None = None
        self._closed = False

    async def machine(self) -> Machine:
        """The machine, started. Raises EngineClosed, or HostNotCapable."""
        if self._closed:
            raise EngineClosed("the engine is closed")
        # After a failure the next caller tries again: the host may have been put right meanwhile.
        if self._machine is None or (self._machine.done() and self._machine.exception() is not None):
            self._machine = asyncio.ensure_future(self._start())
        # Shielded: one of the callers being cancelled must not stop the start that the others wait for.
        return await asyncio.shield(self._machine)

    async def _start(self) -> Machine:
        machine = await self._start_machine()
        machine.when_lost(lambda why: self.on_lost(why))
        return machine

    def machine_if_started(self) -> Machine | None:
        if self._machine is None or not self._machine.done() or self._machine.exception() is not None:
            return None
        return self._machine.result()

    async def open_host_folder(self, path: str, writable: bool) -> int:
        """A folder of the host as a detached mount."""
        return await (await self.machine()).open_folder(path, writable)

    async def new_network(self, spec: SandboxSpec, carried: CarriedState | None = None) -> EngineNetwork | None:
        """The network of a sandbox that is to be made, the caller's. The proxy runs when this returns, or it raises."""
        if spec.network is None:
            return None
        known = carried.secrets if carried is not None else ()
        return await EngineNetwork.make(self.proxy, spec.network, spec.secrets, known, spec.owner)

    async def hidden(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox that installs packages for another: no list shows it, and the caller closes it.

        It counts in the quota of its owner until it is closed. Raises LimitReached.
        """
        async with AsyncExitStack() as undo:
            reservation = undo.enter_context(self.quotas.reserve_hidden(spec.owner, spec.limits.memory_bytes))
            machine = await self.machine()
            await machine.template(spec.template)
            new = NewSandbox(self, spec, await self.new_network(spec), hidden=True)
            (sandbox,) = await bring_up(TemplateSource(machine, spec), [new], undo)
            sandbox.when_closed = reservation.release
            undo.pop_all()
        return sandbox

    def forbid(self) -> None:
        """From now on no machine is started and none is handed out."""
        self._closed = True

    async def close(self) -> None:
        """To be called when all sandboxes and snapshots are closed."""
        if self._machine is not None:
            machine = (await asyncio.gather(self._machine, return_exceptions=True))[0]
            if not isinstance(machine, BaseException):
                await machine.close()
        await self.proxy.close()


class NewSandbox:
    """A sandbox that is to be made. Owns the network until it has a body; then the sandbox owns both.

    ``copy_network`` makes the network when the body is there: a copy gets the rules of that moment.
    """

    def __init__(
        self,
        workshop: Workshop,
        spec: SandboxSpec,
        network: EngineNetwork | None = None,
        carried: CarriedState | None = None,
        parent: str | None = None,
        hidden: bool = False,
        copy_network: Callable[[], EngineNetwork] | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        self._workshop = workshop
        self._spec = spec
        self._network = network
        self._carried = carried
        self._parent = parent
        self._hidden = hidden
        self._copy_network = copy_network
        self._id = sandbox_id or f"sbx_{secrets.token_hex(16)}"
        self._sandbox: Sandbox | None = None

    def take(self, body: Body) -> Sandbox:
        workshop, spec = self._workshop, self._spec
        if self._copy_network is not None:
            self._network = self._copy_network()
        network = self._network
        sandbox = self._sandbox = Sandbox(
            self._id,
            spec,
            body,
            workshop.settings,
            self._carried,
            self._parent,
            workshop.shelf,
            network,
            workshop.proxy,
        )
        if network is not None:
            if not self._hidden:
                network.beside = lambda body: PackageService(
                    workshop.packages, body, lambda: Requester.of(sandbox.whole_spec(), network.log.append)
                )
            network.log.on_attempt = lambda allowed: workshop.attempts.update([(spec.owner, allowed)])
            network.begin(body, take_proxy_sockets(body))
        return sandbox

    async def give_up(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
        elif self._network is not None:
            self._network.close()
