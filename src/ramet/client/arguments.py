"""What a user may ask for when making a sandbox, and where. Everything is checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

from ramet.client.handle import snapshot_handle
from ramet.client.network import network_spec, secret_specs
from ramet.protocol import checks
from ramet.protocol.checks import BUILTIN_TEMPLATES, MIB
from ramet.protocol.network import NetworkSpec, SecretSpec
from ramet.protocol.refusing import kind_of, must, wrong_argument
from ramet.protocol.requests import SandboxRequest
from ramet.protocol.specs import Lifetime, MountSpec, SandboxSpec, ThawSpec
from ramet.transport import resolving
from ramet.transport.embedded import default_engine, saved_templates
from ramet.transport.resolving import resolve
from ramet.transport.seam import Engine


@dataclass(frozen=True)
class Template:
    """An interpreter with modules imported ahead of time. It boots once, for the first sandbox that uses it."""

    name: str
    python: str | PathLike[str] | None = None
    preload: Sequence[str] = ()

    def __post_init__(self) -> None:
        checks.check_template_name(self.name)
        checks.check_preload(self.preload)
        if self.name in BUILTIN_TEMPLATES:
            names = ", ".join(map(repr, BUILTIN_TEMPLATES))
            raise must("name", f"be another name than those of the built-in templates ({names})", self.name)
        object.__setattr__(self, "preload", tuple(self.preload))


@dataclass(frozen=True)
class Mount:
    """A host folder to show in a sandbox."""

    path: str | PathLike[str]
    writable: bool = False


Mounts = Mapping[str, "str | PathLike[str] | Mount"]

# Templates of one's own that were used in this process, so that their names alone suffice from then on.
_known: dict[str, Template] = {}


def server_for(template: object, url: str | None, api_key: str | None) -> Engine | None:
    """The engine behind a server, if one is named here or in the environment. None: this process's own.

    An empty ``url`` asks for this process's own, whatever the environment says.
    """
    if hasattr(template, "_snapshot"):
        engine = snapshot_handle(template, "template").engine
        if url is not None and _server(url, api_key).place != engine.place:
            raise wrong_argument(
                "url", "url must be the server that has the snapshot", hint="leave out url: a snapshot knows its server"
            )
        return engine if engine.remote else None
    if url is None:
        url = os.environ.get("RAMET_URL", "")
    if url == "":
        if api_key is not None:
            raise wrong_argument("api_key", "api_key needs a server", hint="give url= too, or set RAMET_URL")
        return None
    return _server(url, api_key)


def _server(url: str, api_key: str | None) -> Engine:
    # Imported when needed: a process with an engine of its own does without HTTP.
    from ramet.transport.http.remote import remote_engine

    return remote_engine(url, api_key if api_key is not None else os.environ.get("RAMET_API_KEY") or None)


def check_id(sandbox_id: object) -> None:
    if not isinstance(sandbox_id, str) or not sandbox_id.isascii() or not 0 < len(sandbox_id) <= 100:
        raise must("sandbox_id", "be the id of a sandbox", sandbox_id)


def engine_for(template: object) -> Engine:
    """The engine of this process that can make it: a snapshot is of one engine, anything else can be made in any."""
    if hasattr(template, "_snapshot"):
        return snapshot_handle(template, "template").engine
    return default_engine()


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
    timeout_seconds: float | None = None,
    idle_timeout_seconds: float | None = None,
    network: object = None,
    secrets: object = None,
    server: Engine | None = None,
) -> SandboxSpec | ThawSpec | SandboxRequest:
    """What an engine is asked with these arguments, or InvalidArgument. A server resolves a request itself."""
    options = _Options(
        env,
        cwd,
        mounts,
        memory_mib,
        pids,
        cpus,
        disk_mib,
        timeout_seconds,
        idle_timeout_seconds,
        network_spec(network),
        secrets,
        server is not None,
    )
    if server is not None and python is not None:
        raise wrong_argument("python", "python is for embedded sandboxes only; a server uses its own Python")
    if hasattr(template, "_snapshot") or (isinstance(template, str) and _is_saved(template, server)):
        return _thaw_spec(template, python, options)
    request = _request(template, python, options, server)
    if server is not None:
        options.check_limits()
    spec = resolve(request) if server is None else request
    if isinstance(template, Template):
        _known.setdefault(template.name, template)
    return spec


def check_new_name(engine: Engine, name: object) -> None:
    """A name that a snapshot may be saved as."""
    checks.check_template_name(name)
    if name in BUILTIN_TEMPLATES or name in _known or name in engine.saved_templates:
        raise must("name", "be one that no template has yet", name)


@dataclass(frozen=True)
class _Options:
    """The arguments that have nothing to do with the template."""

    env: object
    cwd: object
    mounts: object
    memory_mib: int | None
    pids: int | None
    cpus: float | None
    disk_mib: int | None
    timeout_seconds: float | None
    idle_timeout_seconds: float | None
    network: NetworkSpec | None
    secrets: object
    remote: bool

    def check_limits(self) -> None:
        """Those that are given; what is not given is decided where the sandbox is made."""
        if self.memory_mib is not None:
            (checks if self.remote else resolving).check_memory_mib(self.memory_mib)
        if self.pids is not None:
            checks.check_pids(self.pids)
        if self.cpus is not None:
            checks.check_cpus(self.cpus)
        if self.disk_mib is not None:
            checks.check_disk_mib(self.disk_mib)

    def checked_lifetime(self) -> Lifetime:
        lifetime = Lifetime(self.timeout_seconds, self.idle_timeout_seconds)
        checks.check_lifetime(lifetime)
        return lifetime

    def checked_cwd(self) -> str | None:
        if self.cwd is not None:
            checks.check_path(self.cwd, "cwd")
        return None if self.cwd is None else str(self.cwd)

    def checked_environment(self) -> tuple[tuple[str, str], ...]:
        if self.env is None:
            return ()
        if not isinstance(self.env, Mapping):
            raise must("env", "be a mapping of names to strings", kind_of(self.env))
        checks.check_environment(self.env)
        return tuple(self.env.items())

    def checked_secrets(self) -> tuple[SecretSpec, ...]:
        return secret_specs(self.secrets, self.network, self.env if isinstance(self.env, Mapping) else ())

    def checked_mounts(self) -> tuple[MountSpec, ...]:
        mounts = self.mounts
        if mounts is None:
            return ()
        if self.remote:
            raise wrong_argument(
                "mounts", "mounts are for embedded sandboxes only", hint="send files with files.write or upload"
            )
        if not isinstance(mounts, Mapping):
            raise must("mounts", "be a mapping of paths in the sandbox to host folders", kind_of(mounts))
        return tuple(_mount(target, source) for target, source in mounts.items())


def _is_saved(name: str, server: Engine | None) -> bool:
    """A snapshot was saved by this name. At a server anybody may have done so: what is unknown here is asked for."""
    if server is None:
        return name in saved_templates()
    return name in server.saved_templates or (name not in BUILTIN_TEMPLATES and name not in _known)


def _thaw_spec(template: object, python: object, options: _Options) -> ThawSpec:
    """What is not given stays as the frozen sandbox had it."""
    if python is not None:
        raise wrong_argument("python", "python cannot be given with a snapshot, which has its own")
    if isinstance(template, str):
        checks.check_template_name(template, "template")
    options.check_limits()
    mounts = None if options.mounts is None else options.checked_mounts()
    for mount in mounts or ():
        checks.check_mount(mount)
    lifetime = options.checked_lifetime()
    return ThawSpec(
        snapshot=None if isinstance(template, str) else snapshot_handle(template, "template").open(),
        name=template if isinstance(template, str) else None,
        memory_bytes=None if options.memory_mib is None else options.memory_mib * MIB,
        pids=options.pids,
        cpus=None if options.cpus is None else float(options.cpus),
        disk_bytes=None if options.disk_mib is None else options.disk_mib * MIB,
        mounts=mounts,
        environment=options.checked_environment(),
        cwd=options.checked_cwd(),
        lifetime=None if lifetime == Lifetime() else lifetime,
        network=options.network,
        secrets=options.checked_secrets(),
    )


def _request(
    template: object, python: str | PathLike[str] | None, options: _Options, server: Engine | None
) -> SandboxRequest:
    name, preload, python = _template(template, python, server)
    options.checked_lifetime()
    if python is not None:
        python = _host_path(python, "python", "the path of a Python interpreter, 3.11 or newer")
    return SandboxRequest(
        template=name,
        preload=preload,
        python=python,
        env=options.checked_environment(),
        cwd=options.checked_cwd(),
        mounts=options.checked_mounts(),
        memory_mib=options.memory_mib,
        pids=options.pids,
        cpus=options.cpus,
        disk_mib=options.disk_mib,
        timeout_seconds=options.timeout_seconds,
        idle_timeout_seconds=options.idle_timeout_seconds,
        network=options.network,
        secrets=options.checked_secrets(),
    )


def _template(
    template: object, python: str | PathLike[str] | None, server: Engine | None
) -> tuple[str, tuple[str, ...] | None, str | PathLike[str] | None]:
    """Its name, what it preloads if it is not built in, and the interpreter."""
    saved = saved_templates() if server is None else server.saved_templates
    name: object = template.name if isinstance(template, Template) else template
    if not isinstance(name, str):
        raise must("template", "be the name of a template, a Template or a Snapshot", kind_of(name))
    if name in saved:
        raise wrong_argument(
            "template",
            f"a snapshot is already saved as {name!r}",
            hint=f"use it as Sandbox({name!r}), or choose another name",
        )
    if name in BUILTIN_TEMPLATES:
        return name, None, python
    chosen = template if isinstance(template, Template) else _known.get(name)
    if chosen is None:
        names = ", ".join(map(repr, [*BUILTIN_TEMPLATES, *_known, *sorted(saved)]))
        raise wrong_argument(
            "template",
            f"there is no template {name!r:.100}; known are {names}",
            hint="define one with Template(name, preload=[...])",
        )
    if server is not None and chosen.python is not None:
        raise wrong_argument(
            "template",
            "a template with python= is for embedded sandboxes only",
            hint="give Template(name, preload=[...])",
        )
    if chosen.python is not None and python is not None and os.fspath(chosen.python) != os.fspath(python):
        raise wrong_argument("python", f"python must be that of the template {name!r}, or be left out")
    return name, tuple(chosen.preload), python if python is not None else chosen.python


def _mount(target: object, source: object) -> MountSpec:
    checks.check_path(target, "mounts")
    mount = source if isinstance(source, Mount) else None
    path = _host_path(mount.path if mount else source, "mounts", "the path of a host folder or a Mount")
    if not os.path.isdir(path):
        raise must("mounts", "be a folder that exists on the host", path, subject="a source in mounts")
    return MountSpec(path, str(target), mount.writable if mount else False)


def _host_path(path: object, argument: str, allowed: str) -> str:
    if not isinstance(path, str | PathLike):
        raise must(argument, f"be {allowed}", kind_of(path))
    text = os.fspath(path)
    checks.check_path(text, argument)
    return os.path.abspath(text)
