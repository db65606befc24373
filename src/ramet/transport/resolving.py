"""Turns what a user asked for into what an engine carries out, on the machine where the engine is."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from ramet.isolation.files import interpreter as interpreters
from ramet.isolation.kernel import cgroups
from ramet.protocol import checks
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.checks import BUILTIN_TEMPLATES, MIB
from ramet.protocol.requests.options import options_of
from ramet.protocol.requests.sandboxes import CarriedOptions, SandboxOptions
from ramet.protocol.values.specs import Interpreter, Lifetime, Limits, SandboxSpec, TemplateSpec, ThawSpec

_MEMORY_MIB = 4096
_PIDS = 256
_CPUS = 2.0
_DISK_MIB = 4096


def resolve(options: SandboxOptions, interpreter: Interpreter | None = None, owner: str = "") -> SandboxSpec:
    """The spec of a new sandbox. Without an ``interpreter``: the one asked for, or our own.

    Raises InvalidArgument for an option that is not allowed.
    """
    options.check()
    limits = _limits(options)
    spec = SandboxSpec(
        _template(options, interpreter),
        limits,
        options.mounts or (),
        options.env,
        Lifetime(options.timeout_seconds, options.idle_timeout_seconds),
        owner,
        **_carried(options),
    )
    checks.check_sandbox(spec)
    return spec


def resolve_thaw(options: SandboxOptions, snapshot: str | None, name: str | None, elsewhere: bool = False) -> ThawSpec:
    """The spec of a sandbox from a snapshot: what is not asked for stays as the frozen one had it.

    ``elsewhere``: another machine makes it, and compares the memory with its own. Raises InvalidArgument.
    """
    options.check()
    if options.memory_mib is not None and not elsewhere:
        check_memory_mib(options.memory_mib)
    for mount in options.mounts or ():
        checks.check_mount(mount)
    lifetime = Lifetime(options.timeout_seconds, options.idle_timeout_seconds)
    return ThawSpec(
        snapshot=snapshot,
        name=name,
        memory_bytes=None if options.memory_mib is None else options.memory_mib * MIB,
        pids=options.pids,
        cpus=None if options.cpus is None else float(options.cpus),
        disk_bytes=None if options.disk_mib is None else options.disk_mib * MIB,
        mounts=options.mounts,
        environment=options.env,
        lifetime=None if lifetime == Lifetime() else lifetime,
        **_carried(options),
    )


def _carried(options: SandboxOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options_of(CarriedOptions)}


def _template(options: SandboxOptions, interpreter: Interpreter | None) -> TemplateSpec:
    name = options.template
    if options.preload is None and name not in BUILTIN_TEMPLATES:
        names = ", ".join(map(repr, BUILTIN_TEMPLATES))
        raise wrong_argument(
            "template",
            f"there is no template {name!r:.100}; built in are {names}",
            hint="give preload to define one of your own",
        )
    if options.preload is None:
        return TemplateSpec(name, interpreter or _find(options.python), BUILTIN_TEMPLATES[name], builtin=True)
    # Before an interpreter is started to learn of its folders.
    checks.check_template_name(name, "template")
    checks.check_preload(options.preload)
    if name in BUILTIN_TEMPLATES:
        names = ", ".join(map(repr, BUILTIN_TEMPLATES))
        raise must("template", f"be another name than those of the built-in templates ({names})", name)
    return TemplateSpec(name, interpreter or _find(options.python), options.preload, builtin=False)


def _find(python: str | None) -> Interpreter:
    allowed = "the path of a Python interpreter, 3.11 or newer"
    if python is None:
        if not sys.executable:
            raise wrong_argument(
                "python", "this process does not know its own interpreter", hint=f"give python={allowed}"
            )
        return interpreters.find(sys.executable)
    # Not resolved: the link in a virtual environment is what makes it one.
    if not os.path.isfile(python) or not os.access(python, os.X_OK):
        raise must("python", f"be {allowed}", python)
    return interpreters.find(python)


def _limits(options: SandboxOptions) -> Limits:
    memory_mib = default_memory_mib() if options.memory_mib is None else options.memory_mib
    check_memory_mib(memory_mib)
    return Limits(
        memory_mib * MIB,
        _PIDS if options.pids is None else options.pids,
        _CPUS if options.cpus is None else float(options.cpus),
        (_DISK_MIB if options.disk_mib is None else options.disk_mib) * MIB,
    )


def check_memory_mib(memory_mib: int) -> None:
    """Not more than this machine has: such a limit would never hold anything."""
    checks.check_memory_mib(memory_mib)
    most_mib = machine_memory_bytes() // MIB
    if memory_mib > most_mib:
        raise must("memory_mib", f"be at most {most_mib} (this machine has {most_mib} MiB of memory)", memory_mib)


def machine_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def default_memory_mib() -> int:
    """4 GiB, or half of what the host has, or a container or service that we are in, if that is less."""
    most_bytes = machine_memory_bytes()
    limit_bytes = cgroups.memory_limit()
    if limit_bytes is not None:
        most_bytes = min(most_bytes, limit_bytes)
    return max(min(_MEMORY_MIB, most_bytes // 2 // MIB), checks.MEMORY_MIB_AT_LEAST)
