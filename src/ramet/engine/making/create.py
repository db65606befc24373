"""Create: a new sandbox from a template."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history.past import TemplateState
from ramet.engine.making.bring_up import bring_up
from ramet.engine.making.sources import TemplateSource
from ramet.engine.making.workshop import NewSandbox
from ramet.engine.network.permissions import check_allowed
from ramet.engine.registry import Registry
from ramet.engine.settings import Settings
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.checks import check_sandbox
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import SandboxSpec

_ANY = Allowance()


async def create(registry: Registry, spec: SandboxSpec, allowance: Allowance = _ANY) -> Sandbox:
    """A new sandbox, ready for its first cell. Raises InvalidArgument, LimitReached, TemplateFailed, HostNotCapable."""
    # Whether paths of the host exist was checked on the owner's side: the engine does not see the host.
    check_sandbox(spec)
    check_shown(registry.settings, spec)
    registry.templates.check(spec.template, spec.owner)
    registry.check_keeping(spec)
    check_allowed(spec.network, allowance)
    workshop = registry.workshop
    with workshop.quotas.reserve(spec.owner, allowance, 1, spec.limits.memory_bytes):
        machine = await workshop.machine()
        with registry.templates.booting(spec, allowance):
            await machine.template(spec.template)
            registry.templates.booted(spec)
        async with AsyncExitStack() as undo:
            new = NewSandbox(workshop, spec, await workshop.new_network(spec))
            made = await bring_up(TemplateSource(machine, spec), [new], undo)
            made[0].past.begin(TemplateState(made[0].spec))
            registry.add(made)
            undo.push_async_callback(registry.forget, made[0].id)
            await registry.sleepers.watch(made[0])
            undo.pop_all()
    return made[0]


def check_shown(settings: Settings, spec: SandboxSpec) -> None:
    """Raise InvalidArgument if a sandbox is to see files that the engine of a server shows to no client.

    The process that speaks with the network may have been taken over: it must not reach the host's files this way.
    """
    shown = settings.interpreter
    if shown is None:
        return
    if spec.mounts:
        raise wrong_argument("mounts", "this engine allows no mounts of host folders")
    if spec.template.interpreter != shown:
        raise wrong_argument(
            "python",
            f"this engine only makes sandboxes from {shown.executable} as it was when the engine started",
            hint="restart the engine to use another one; its sandboxes end",
        )
