"""What arguments are allowed.

Client and engine both ask here: the client to fail early, the engine because it trusts nobody.
Nothing here looks at the file system; whether a path exists is asked where the path is used.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable, Mapping

from ramet.protocol.frames import TO_GUEST
from ramet.protocol.network import check_network, check_secrets
from ramet.protocol.refusing import invalid
from ramet.protocol.specs import Lifetime, Limits, MountSpec, SandboxSpec, TemplateSpec, ThawSpec

LANGUAGES = ("python", "bash")

BUILTIN_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "python-datasci": ("numpy", "pandas", "matplotlib"),
}

MIB = 1024 * 1024
CODE_BYTES_AT_MOST = TO_GUEST.blob_bytes
# An interpreter with IPython needs about 40 MiB; below this every first cell would be killed.
MEMORY_MIB_AT_LEAST = 64
# The REPL, a shell and a command; below this not even `!ls` runs.
PIDS_AT_LEAST = 4
PIDS_AT_MOST = 4_194_304  # PID_MAX_LIMIT of Linux
TIMEOUT_SECONDS_AT_MOST = 366 * 24 * 3600.0
ENVIRONMENT_BYTES_AT_MOST = 1 * MIB
CHILDREN_AT_MOST = 256
COMPARED_PATHS_AT_MOST = 1000
PATH_BYTES_AT_MOST = 4095  # PATH_MAX without its final NUL

# Folders of the pod itself; a mount over or below one of them would take a wall or the interpreter away.
_RESERVED_TARGETS = ("/proc", "/dev", "/sys", "/usr")
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_code(code: object) -> bytes:
    """The code as UTF-8."""
    if not isinstance(code, str):
        raise invalid("code", f"is a {type(code).__name__}", "a string")
    if "\0" in code:
        line = code.count("\n", 0, code.index("\0")) + 1
        raise invalid("code", f"has a NUL character in line {line}", "text without NUL")
    try:
        data = code.encode("utf-8")
    except UnicodeEncodeError as error:
        line = code.count("\n", 0, error.start) + 1
        raise invalid("code", f"has a lone surrogate in line {line}", "text that UTF-8 can hold") from None
    check_code_bytes(len(data))
    return data


def check_code_bytes(length: int) -> None:
    if length > CODE_BYTES_AT_MOST:
        raise invalid("code", f"is {length} bytes long", f"at most {CODE_BYTES_AT_MOST} bytes; upload data as a file")


def check_language(language: object) -> None:
    if language not in LANGUAGES:
        raise invalid("language", f"{language!r} is unknown", " or ".join(map(repr, LANGUAGES)))


def check_timeout(timeout: object, argument: str = "timeout") -> None:
    allowed = f"None, or 0 to {TIMEOUT_SECONDS_AT_MOST:.0f} seconds"
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise invalid(argument, f"is a {type(timeout).__name__}", allowed)
    if not 0 <= timeout <= TIMEOUT_SECONDS_AT_MOST:  # also false for NaN
        raise invalid(argument, f"is {timeout}", allowed)


def check_lifetime(lifetime: Lifetime) -> None:
    for argument in ("timeout_seconds", "idle_timeout_seconds"):
        value = getattr(lifetime, argument)
        check_timeout(value, argument)
        if value == 0:
            raise invalid(argument, "is 0", f"None, or more than 0 and at most {TIMEOUT_SECONDS_AT_MOST:.0f} seconds")


def check_environment(environment: Mapping[str, str]) -> None:
    """Values are never part of a message: they may be secrets."""
    total = 0
    entries: Iterable[tuple[object, object]] = environment.items()
    for name, value in entries:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise invalid("env", f"the name {name!r} is not allowed", "names that are not empty, without '=' and NUL")
        if not isinstance(value, str):
            raise invalid("env", f"the value of {name!r} is a {type(value).__name__}", "strings")
        if "\0" in value:
            raise invalid("env", f"the value of {name!r} has a NUL character", "values without NUL")
        total += bytes_as_path("env", name) + bytes_as_path("env", value) + 2
    if total > ENVIRONMENT_BYTES_AT_MOST:
        raise invalid("env", f"is {total} bytes long", f"at most {ENVIRONMENT_BYTES_AT_MOST} bytes together")


def check_path(path: object, argument: str = "path") -> None:
    """A path in a sandbox; a relative one is below /root."""
    if not isinstance(path, str):
        raise invalid(argument, f"is a {type(path).__name__}", "a path as a string")
    if not path or "\0" in path:
        raise invalid(argument, "is empty" if not path else "has a NUL character", "a path without NUL")
    if bytes_as_path(argument, path) > PATH_BYTES_AT_MOST:
        raise invalid(argument, f"is {len(path)} characters long", f"at most {PATH_BYTES_AT_MOST} bytes")


def check_count(n: object) -> None:
    _check_whole("n", n, 1, CHILDREN_AT_MOST)


def check_flag(value: object, argument: str) -> None:
    if not isinstance(value, bool):
        raise invalid(argument, f"is a {type(value).__name__}", "True or False")


def check_compared_paths(paths: object) -> tuple[str, ...] | None:
    """Paths to compare, absolute and without detours; a relative one is below /root."""
    allowed = f"None, or a list of at most {COMPARED_PATHS_AT_MOST} paths in the sandbox"
    if paths is None:
        return None
    if not isinstance(paths, list | tuple | set | frozenset):
        raise invalid("paths", f"is a {type(paths).__name__}", allowed)
    if len(paths) > COMPARED_PATHS_AT_MOST:
        raise invalid("paths", f"has {len(paths)} entries", allowed)
    for path in paths:
        check_path(path, "paths")
    # normpath keeps two leading slashes, see check_mount.
    return tuple("/" + posixpath.normpath(posixpath.join("/root", path)).lstrip("/") for path in paths)


def check_chunk(chunk: object) -> None:
    _check_whole("chunk", chunk, 1, TO_GUEST.blob_bytes)


def check_template_name(name: object, argument: str = "name") -> None:
    if not isinstance(name, str) or not _TEMPLATE_NAME.fullmatch(name):
        raise invalid(argument, f"{name!r:.100} is not a name", "1 to 64 letters, digits, '.', '_' or '-'")


def check_preload(preload: Iterable[object]) -> None:
    if isinstance(preload, str):
        raise invalid("preload", "is a string", "a list of module names")
    for module in preload:
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise invalid("preload", f"{module!r:.100} is not a module name", "names as in an import statement")


def check_template(spec: TemplateSpec) -> None:
    check_template_name(spec.name, "template")
    check_preload(spec.preload)
    if spec.builtin != (spec.name in BUILTIN_TEMPLATES):
        names = ", ".join(map(repr, BUILTIN_TEMPLATES))
        raise invalid("template", f"{spec.name!r} is the name of a built-in template", f"a name other than {names}")
    if spec.builtin and spec.preload != BUILTIN_TEMPLATES[spec.name]:
        raise invalid("preload", f"is not what {spec.name!r} preloads", "a template with a name of its own")
    links = spec.interpreter.links
    for path in (
        spec.python,
        *spec.interpreter.trees,
        *(at for at, _ in links),
        *filter(None, [spec.interpreter.library]),
    ):
        check_path(path, "python")
        if "\n" in path:
            raise invalid("python", f"{path!r} has a line break", "paths without line breaks")
        if not posixpath.isabs(path):
            raise invalid("python", f"{path!r} is relative", "an absolute path of a Python interpreter")


def check_mount(mount: MountSpec) -> None:
    check_path(mount.source, "mounts")
    check_path(mount.target, "mounts")
    if not posixpath.isabs(mount.source):
        raise invalid("mounts", f"the source {mount.source!r} is relative", "an absolute path of a host folder")
    if not posixpath.isabs(mount.target):
        raise invalid("mounts", f"the target {mount.target!r} is relative", "an absolute path in the sandbox")
    if "\n" in mount.target:
        # A pod is described line by line to the program that makes it.
        raise invalid("mounts", f"the target {mount.target!r} has a line break", "a path without line breaks")
    # normpath keeps two leading slashes, which POSIX lets mean something; Linux does not.
    target = "/" + posixpath.normpath(mount.target).lstrip("/")
    if ".." in mount.target.split("/"):
        raise invalid("mounts", f"the target {mount.target!r} has a part '..'", "a path without '..'")
    if target == "/" or any(target == taken or target.startswith(taken + "/") for taken in _RESERVED_TARGETS):
        allowed = f"a folder other than / and not in {', '.join(_RESERVED_TARGETS)}"
        raise invalid("mounts", f"the target {mount.target!r} belongs to the sandbox itself", allowed)


def check_limits(limits: Limits) -> None:
    _check_whole("memory_mib", limits.memory_bytes // MIB, MEMORY_MIB_AT_LEAST, 2**43)
    _check_whole("pids", limits.pids, PIDS_AT_LEAST, PIDS_AT_MOST)
    _check_whole("disk_mib", limits.disk_bytes // MIB, 1, 2**43)
    check_cpus(limits.cpus)


def check_memory_mib(memory_mib: object) -> None:
    _check_whole("memory_mib", memory_mib, MEMORY_MIB_AT_LEAST, 2**43)


def check_pids(pids: object) -> None:
    _check_whole("pids", pids, PIDS_AT_LEAST, PIDS_AT_MOST)


def check_disk_mib(disk_mib: object) -> None:
    _check_whole("disk_mib", disk_mib, 1, 2**43)


def check_cpus(cpus: object) -> None:
    allowed = "a number of CPUs from 0.01 to 4096"
    if isinstance(cpus, bool) or not isinstance(cpus, int | float):
        raise invalid("cpus", f"is a {type(cpus).__name__}", allowed)
    if not math.isfinite(cpus) or not 0.01 <= cpus <= 4096:
        raise invalid("cpus", f"is {cpus}", allowed)


def check_sandbox(spec: SandboxSpec) -> None:
    check_template(spec.template)
    check_limits(spec.limits)
    check_environment(dict(spec.environment))
    check_lifetime(spec.lifetime)
    if spec.cwd is not None:
        check_path(spec.cwd, "cwd")
    targets: set[str] = set()
    for mount in spec.mounts:
        check_mount(mount)
        target = posixpath.normpath(mount.target)
        if target in targets:
            raise invalid("mounts", f"the target {target!r} is given twice", "each target once")
        targets.add(target)
    if spec.network is not None:
        check_network(spec.network)
    check_secrets(spec.secrets, spec.network)


def check_thaw(spec: ThawSpec, frozen: SandboxSpec) -> SandboxSpec:
    """The whole spec of a sandbox that is thawed from one that was ``frozen``."""
    whole = SandboxSpec(
        frozen.template,
        spec.limits(frozen.limits),
        frozen.mounts if spec.mounts is None else spec.mounts,
        tuple({**dict(frozen.environment), **dict(spec.environment)}.items()),
        frozen.cwd if spec.cwd is None else spec.cwd,
        frozen.lifetime if spec.lifetime is None else spec.lifetime,
        frozen.owner,
        network=spec.network,
        secrets=spec.secrets,
    )
    check_sandbox(whole)
    return whole


def _check_whole(argument: str, value: object, least: int, most: int) -> None:
    allowed = f"a whole number from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(argument, f"is a {type(value).__name__}", allowed)
    if not least <= value <= most:
        raise invalid(argument, f"is {value}", allowed)


def bytes_as_path(argument: str, value: str) -> int:
    try:
        return len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        allowed = "text that UTF-8 can hold, or bytes as os.fsdecode gives them"
        raise invalid(argument, "has a lone surrogate", allowed) from None
