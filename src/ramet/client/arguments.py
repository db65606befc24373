"""What a user may ask for when making a sandbox, and where. Everything is checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from ramet.client.handle import snapshot_handle
from ramet.client.network import network_spec, secret_specs
from ramet.isolation.files.cache_folders import has_saved_image
from ramet.protocol import checks
from ramet.protocol.argument_errors import kind_of, must, wrong_argument
from ramet.protocol.checks import BUILTIN_TEMPLATES, TEMPLATE_NAME
from ramet.protocol.requests.options import options_of
from ramet.protocol.requests.sandboxes import MountSpec, SandboxOptions
from ramet.protocol.values.specs import SandboxSpec, ThawSpec
from ramet.transport.embedded import default_engine, saved_templates
from ramet.transport.resolving import resolve, resolve_thaw
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
    template: object, server: Engine | None = None, **given: object
) -> SandboxSpec | ThawSpec | SandboxOptions:
    """What an engine is asked for with these arguments of ``Sandbox``. A server resolves options itself.

    Raises InvalidArgument.
    """
    remote = server is not None
    if remote:
        _check_remote(given)
    options = _options(given)
    if hasattr(template, "_snapshot") or (isinstance(template, str) and _is_saved(template, server)):
        return _thaw_spec(template, options, remote)
    options = _with_template(options, template, server)
    if remote:
        options.check()
    spec = options if remote else resolve(options)
    if isinstance(template, Template):
        _known.setdefault(template.name, template)
    return spec


def check_new_name(engine: Engine, name: object) -> None:
    """A name that a snapshot may be saved as."""
    checks.check_template_name(name)
    if name in BUILTIN_TEMPLATES or name in _known or name in engine.saved_templates:
        raise must("name", "be one that no template has yet", name)


def check_image_name(name: object) -> None:
    """A name that a snapshot may be written to disk as."""
    checks.check_template_name(name)
    if name in BUILTIN_TEMPLATES or name in _known:
        raise must("name", "be one that no template has yet", name)


def _check_remote(given: Mapping[str, object]) -> None:
    for name, option in options_of(SandboxOptions).items():
        if option.embedded_only and given.get(name) is not None:
            if name == "python":
                raise wrong_argument(name, "python is for embedded sandboxes only; a server uses its own Python")
            hint = "send files with files.write or upload" if name == "mounts" else None
            raise wrong_argument(name, f"{name} are for embedded sandboxes only", hint=hint)


def _options(given: Mapping[str, object]) -> SandboxOptions:
    """The arguments as options, which can travel. None: not asked for."""
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, convert in _CONVERTED.items():
        if name in values:
            values[name] = convert(values[name])
    secrets = secret_specs(values.get("secrets"), values.get("network"), dict(values.get("env", ())))
    return SandboxOptions(**{**values, "secrets": secrets})


def _environment(env: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(env, Mapping):
        raise must("env", "be a mapping of names to strings", kind_of(env))
    checks.check_environment(env)
    return tuple(env.items())


def _mounts(mounts: object) -> tuple[MountSpec, ...]:
    if not isinstance(mounts, Mapping):
        raise must("mounts", "be a mapping of paths in the sandbox to host folders", kind_of(mounts))
    return tuple(_mount(target, source) for target, source in mounts.items())


def _is_saved(name: str, server: Engine | None) -> bool:
    """A snapshot was saved by this name. At a server anybody may have done so: what is unknown here is asked for."""
    if server is None:
        if name in saved_templates():
            return True
        known = name in BUILTIN_TEMPLATES or name in _known or TEMPLATE_NAME.fullmatch(name) is None
        return not known and has_saved_image(name)
    return name in server.saved_templates or (name not in BUILTIN_TEMPLATES and name not in _known)


def _thaw_spec(template: object, options: SandboxOptions, remote: bool) -> ThawSpec:
    """What is not given stays as the frozen sandbox had it."""
    if options.python is not None:
        raise wrong_argument("python", "python cannot be given with a snapshot, which has its own")
    if isinstance(template, str):
        checks.check_template_name(template, "template")
        return resolve_thaw(options, None, template, elsewhere=remote)
    return resolve_thaw(options, snapshot_handle(template, "template").open(), None, elsewhere=remote)


def _with_template(options: SandboxOptions, template: object, server: Engine | None) -> SandboxOptions:
    """Adds its name, what it preloads if it is not built in, and the interpreter."""
    python = options.python
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
        return replace(options, template=name)
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
    if chosen.python is not None and python is not None and _interpreter(chosen.python) != python:
        raise wrong_argument("python", f"python must be that of the template {name!r}, or be left out")
    if python is None and chosen.python is not None:
        python = _interpreter(chosen.python)
    return replace(options, template=name, preload=tuple(chosen.preload), python=python)


def _interpreter(python: object) -> str:
    return _host_path(python, "python", "the path of a Python interpreter, 3.11 or newer")


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


# Arguments that are written in another way than they travel.
_CONVERTED: Mapping[str, Callable[[Any], object]] = {
    "network": network_spec,
    "python": _interpreter,
    "env": _environment,
    "mounts": _mounts,
}
