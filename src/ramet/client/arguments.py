"""What a user may ask for when making a sandbox, as a spec. Everything is checked before anything starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

from ramet.client.handle import snapshot_handle
from ramet.isolation import interpreter
from ramet.protocol import checks
from ramet.protocol.checks import BUILTIN_TEMPLATES, MIB, invalid
from ramet.protocol.specs import Interpreter, Limits, MountSpec, SandboxSpec, TemplateSpec, ThawSpec
from ramet.transport.embedded import EmbeddedEngine, default_engine, saved_templates

_MEMORY_MIB = 4096
_PIDS = 256
_CPUS = 2.0
_DISK_MIB = 4096


@dataclass(frozen=True)
class Template:
    """An interpreter with modules imported ahead of time. Booted once, when the first sandbox asks for it."""

    name: str
    python: str | PathLike[str] | None = None
    preload: Sequence[str] = ()

    def __post_init__(self) -> None:
        checks.check_template_name(self.name)
        checks.check_preload(self.preload)
        if self.name in BUILTIN_TEMPLATES:
            names = ", ".join(map(repr, BUILTIN_TEMPLATES))
            raise invalid("name", f"{self.name!r} is the name of a built-in template", f"a name other than {names}")
        object.__setattr__(self, "preload", tuple(self.preload))


@dataclass(frozen=True)
class Mount:
    """A host folder to show in a sandbox."""

    path: str | PathLike[str]
    writable: bool = False


Mounts = Mapping[str, "str | PathLike[str] | Mount"]

# Templates of one's own that were used in this process, so that their names alone suffice from then on.
_known: dict[str, Template] = {}


def sandbox_spec(
    template: object,
    python: str | PathLike[str] | None,
    env: Mapping[str, str] | None,
    cwd: str | None,
    mounts: Mounts | None,
    memory_mib: int | None,
    pids: int | None,
    cpus: float | None,
    disk_mib: int | None,
) -> SandboxSpec | ThawSpec:
    """The spec for these arguments, or InvalidArgument."""
    if hasattr(template, "_snapshot") or (isinstance(template, str) and template in saved_templates()):
        return _thaw_spec(template, python, env, cwd, mounts, memory_mib, pids, cpus, disk_mib)
    limits = _limits(memory_mib, pids, cpus, disk_mib)
    environment = _environment(env)
    if cwd is not None:
        checks.check_path(cwd, "cwd")
    spec = SandboxSpec(_template(template, python), limits, _mounts(mounts), environment, cwd)
    checks.check_sandbox(spec)
    if isinstance(template, Template):
        _known.setdefault(template.name, template)
    return spec


def engine_for(template: object) -> EmbeddedEngine:
    """The engine that can make it: a snapshot is of one engine, anything else can be made in this process's own."""
    if hasattr(template, "_snapshot"):
        return snapshot_handle(template, "template").engine
    return default_engine()


def check_new_name(engine: EmbeddedEngine, name: object) -> None:
    """A name that a snapshot may be saved as."""
    checks.check_template_name(name)
    if name in BUILTIN_TEMPLATES or name in _known or name in engine.saved_templates:
        raise invalid("name", f"there is a template {name!r} already", "a name that no template has")


def _thaw_spec(
    template: object,
    python: str | PathLike[str] | None,
    env: Mapping[str, str] | None,
    cwd: str | None,
    mounts: Mounts | None,
    memory_mib: int | None,
    pids: int | None,
    cpus: float | None,
    disk_mib: int | None,
) -> ThawSpec:
    """What is not given stays as the frozen sandbox had it."""
    if python is not None:
        raise invalid("python", "a snapshot has its own", "no python= with a snapshot")
    if memory_mib is not None:
        checks.check_memory_mib(memory_mib)
    if pids is not None:
        checks.check_pids(pids)
    if cpus is not None:
        checks.check_cpus(cpus)
    if disk_mib is not None:
        checks.check_disk_mib(disk_mib)
    if cwd is not None:
        checks.check_path(cwd, "cwd")
    specs = None if mounts is None else _mounts(mounts)
    for mount in specs or ():
        checks.check_mount(mount)
    return ThawSpec(
        snapshot=None if isinstance(template, str) else snapshot_handle(template, "template").open(),
        name=template if isinstance(template, str) else None,
        memory_bytes=None if memory_mib is None else memory_mib * MIB,
        pids=pids,
        cpus=None if cpus is None else float(cpus),
        disk_bytes=None if disk_mib is None else disk_mib * MIB,
        mounts=specs,
        environment=_environment(env),
        cwd=cwd,
    )


def _template(template: object, python: str | PathLike[str] | None) -> TemplateSpec:
    name: object = template.name if isinstance(template, Template) else template
    if not isinstance(name, str):
        allowed = "the name of a template, a Template, or a Snapshot"
        raise invalid("template", f"is a {type(name).__name__}", allowed)
    if name in saved_templates():
        raise invalid("template", f"a snapshot was saved as {name!r}", f"Sandbox({name!r}), or another name")
    if name in BUILTIN_TEMPLATES:
        return TemplateSpec(name, _interpreter(python), BUILTIN_TEMPLATES[name], builtin=True)
    chosen = template if isinstance(template, Template) else _known.get(name)
    if chosen is None:
        names = ", ".join(map(repr, [*BUILTIN_TEMPLATES, *_known, *sorted(saved_templates())]))
        raise invalid("template", f"{name!r:.100} is unknown", f"{names}, or Template(name, preload=[...])")
    if chosen.python is not None and python is not None and os.fspath(chosen.python) != os.fspath(python):
        raise invalid("python", f"the template {name!r} has another one", "python= of the template or of the sandbox")
    found = _interpreter(python if python is not None else chosen.python)
    return TemplateSpec(name, found, tuple(chosen.preload), builtin=False)


def _interpreter(python: str | PathLike[str] | None) -> Interpreter:
    allowed = "the path of a Python interpreter, 3.11 or newer"
    if python is None:
        if not sys.executable:
            raise invalid("python", "this process does not know its own interpreter", allowed)
        return interpreter.find(sys.executable)
    path = _host_path(python, "python", allowed)
    # Not resolved: the link in a virtual environment is what makes it one.
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise invalid("python", f"{path!r} is not a program", allowed)
    return interpreter.find(path)


def _limits(memory_mib: int | None, pids: int | None, cpus: float | None, disk_mib: int | None) -> Limits:
    if memory_mib is None:
        memory_mib = _default_memory_mib()
    pids = _PIDS if pids is None else pids
    cpus = _CPUS if cpus is None else cpus
    disk_mib = _DISK_MIB if disk_mib is None else disk_mib
    checks.check_memory_mib(memory_mib)
    checks.check_pids(pids)
    checks.check_cpus(cpus)
    checks.check_disk_mib(disk_mib)
    return Limits(memory_mib * MIB, pids, float(cpus), disk_mib * MIB)


def _default_memory_mib() -> int:
    """4 GiB, or half of what the host has if that is less."""
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(min(_MEMORY_MIB, host_bytes // 2 // MIB), checks.MEMORY_MIB_AT_LEAST)


def _environment(env: object) -> tuple[tuple[str, str], ...]:
    if env is None:
        return ()
    if not isinstance(env, Mapping):
        raise invalid("env", f"is a {type(env).__name__}", "a mapping of names to strings")
    checks.check_environment(env)
    return tuple(env.items())


def _mounts(mounts: object) -> tuple[MountSpec, ...]:
    if mounts is None:
        return ()
    if not isinstance(mounts, Mapping):
        raise invalid("mounts", f"is a {type(mounts).__name__}", "a mapping of paths in the sandbox to host folders")
    return tuple(_mount(target, source) for target, source in mounts.items())


def _mount(target: object, source: object) -> MountSpec:
    checks.check_path(target, "mounts")
    mount = source if isinstance(source, Mount) else None
    path = _host_path(mount.path if mount else source, "mounts", "the path of a host folder, or a Mount")
    if not os.path.isdir(path):
        raise invalid("mounts", f"the source {path!r} is not a folder", "a folder that exists on the host")
    return MountSpec(path, str(target), mount.writable if mount else False)


def _host_path(path: object, argument: str, allowed: str) -> str:
    if not isinstance(path, str | PathLike):
        raise invalid(argument, f"is a {type(path).__name__}", allowed)
    text = os.fspath(path)
    checks.check_path(text, argument)
    return os.path.abspath(text)
