"""From what a user asked for to what an engine is told, on the machine where the engine is."""

from __future__ import annotations

import functools
import os
import sys

from ramet.isolation import cgroups
from ramet.isolation import interpreter as interpreters
from ramet.protocol import checks
from ramet.protocol.checks import BUILTIN_TEMPLATES, MIB
from ramet.protocol.refusing import must, wrong_argument
from ramet.protocol.requests import SandboxRequest
from ramet.protocol.specs import Interpreter, Lifetime, Limits, SandboxSpec, TemplateSpec

_MEMORY_MIB = 4096
_PIDS = 256
_CPUS = 2.0
_DISK_MIB = 4096


def resolve(request: SandboxRequest, interpreter: Interpreter | None = None, owner: str = "") -> SandboxSpec:
    """The spec for a request, or InvalidArgument. Without an ``interpreter``: the one asked for, or our own."""
    limits = _limits(request)
    checks.check_environment(dict(request.env))
    if request.cwd is not None:
        checks.check_path(request.cwd, "cwd")
    lifetime = Lifetime(request.timeout_seconds, request.idle_timeout_seconds)
    checks.check_lifetime(lifetime)
    spec = SandboxSpec(
        _template(request, interpreter),
        limits,
        request.mounts,
        request.env,
        request.cwd,
        lifetime,
        owner,
        request.persistent,
        request.network,
        request.secrets,
    )
    checks.check_sandbox(spec)
    return spec


def _template(request: SandboxRequest, interpreter: Interpreter | None) -> TemplateSpec:
    name = request.template
    if request.preload is None and name not in BUILTIN_TEMPLATES:
        names = ", ".join(map(repr, BUILTIN_TEMPLATES))
        raise wrong_argument(
            "template",
            f"there is no template {name!r:.100}; built in are {names}",
            hint="give preload to define one of your own",
        )
    if request.preload is None:
        return TemplateSpec(name, interpreter or _find(request.python), BUILTIN_TEMPLATES[name], builtin=True)
    # Before an interpreter is started to learn of its folders.
    checks.check_template_name(name, "template")
    checks.check_preload(request.preload)
    if name in BUILTIN_TEMPLATES:
        names = ", ".join(map(repr, BUILTIN_TEMPLATES))
        raise must("template", f"be another name than those of the built-in templates ({names})", name)
    return TemplateSpec(name, interpreter or _find(request.python), request.preload, builtin=False)


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


def _limits(request: SandboxRequest) -> Limits:
    memory_mib = default_memory_mib() if request.memory_mib is None else request.memory_mib
    pids = _PIDS if request.pids is None else request.pids
    cpus = _CPUS if request.cpus is None else request.cpus
    disk_mib = _DISK_MIB if request.disk_mib is None else request.disk_mib
    check_memory_mib(memory_mib)
    checks.check_pids(pids)
    checks.check_cpus(cpus)
    checks.check_disk_mib(disk_mib)
    return Limits(memory_mib * MIB, pids, float(cpus), disk_mib * MIB)


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
