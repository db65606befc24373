"""Checks of arguments.

Both client and engine use them: the client to fail early, the engine because it does not trust the client. They do not
look at the file system; the code that uses a path finds out whether it exists.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, get_args

from ramet.protocol.argument_errors import Words, kind_of, must, wrong_argument
from ramet.protocol.frames import TO_GUEST

if TYPE_CHECKING:
    from ramet.protocol.values.specs import Lifetime, Limits, MountSpec, SandboxSpec, TemplateSpec, ThawSpec

Language = Literal["python", "bash"]
LANGUAGES: tuple[Language, ...] = get_args(Language)

BUILTIN_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "python-datasci": ("numpy", "pandas", "matplotlib"),
}

MIB = 1024 * 1024
CODE_BYTES_AT_MOST = TO_GUEST.blob_bytes
# An interpreter with IPython needs about 40 MiB; with less than this every first cell would be killed.
MEMORY_MIB_AT_LEAST = 64
# The REPL, a shell and a command; with fewer not even `!ls` runs.
PIDS_AT_LEAST = 4
PIDS_AT_MOST = 4_194_304  # PID_MAX_LIMIT of Linux
CPUS_AT_LEAST = 0.01
CPUS_AT_MOST = 4096
TIMEOUT_SECONDS_AT_MOST = 366 * 24 * 3600.0
ENVIRONMENT_BYTES_AT_MOST = 1 * MIB
CHILDREN_AT_MOST = 256
COMPARED_PATHS_AT_MOST = 1000
PATH_BYTES_AT_MOST = 4095  # PATH_MAX without its final NUL

# Folders of the pod itself: a mount over or below one of them would remove a wall or the interpreter.
_RESERVED_TARGETS = ("/proc", "/dev", "/sys", "/usr")
TEMPLATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_code(code: object) -> bytes:
    """Return the code as UTF-8.

    Characters that no code can contain are kept: the cell then fails with a SyntaxError.
    """
    if not isinstance(code, str):
        raise must("code", "be a string", kind_of(code))
    data = code.encode("utf-8", "surrogatepass")
    check_code_bytes(len(data))
    return data


def check_code_bytes(length: int) -> None:
    if length > CODE_BYTES_AT_MOST:
        raise must(
            "code",
            f"be at most {CODE_BYTES_AT_MOST} bytes long",
            Words(f"{length} bytes"),
            hint="upload data as a file",
        )


def check_language(language: object) -> None:
    if language not in LANGUAGES:
        raise must("language", f"be {' or '.join(map(repr, LANGUAGES))}", language)


def check_timeout(timeout: object) -> None:
    """Check the timeout of a cell."""
    check_seconds(timeout, "timeout", hint="leave it out, or give None, for no limit")


def check_seconds(seconds: object, argument: str, hint: str | None = None) -> None:
    """Check a time that may be None. What None means differs: no limit, a server's usual time, or no change."""
    if seconds is None:
        return
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        requirement = "be a number of seconds"
    elif seconds > TIMEOUT_SECONDS_AT_MOST:
        requirement = f"be at most {TIMEOUT_SECONDS_AT_MOST:.0f} seconds"
    elif not seconds > 0:  # also true for NaN
        requirement = "be more than 0 seconds"
    else:
        return
    raise must(argument, requirement, seconds, hint=hint)


def check_lifetime(lifetime: Lifetime) -> None:
    for argument in ("timeout_seconds", "idle_timeout_seconds"):
        check_seconds(getattr(lifetime, argument), argument)


def check_environment(environment: Mapping[str, str]) -> None:
    """Check an environment. Messages never contain values, which may be secrets."""
    total = 0
    entries: Iterable[tuple[object, object]] = environment.items()
    for name, value in entries:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise must("env", "be a non-empty string without '=' and NUL", name, subject="each name in env")
        if not isinstance(value, str):
            raise must("env", "be a string", kind_of(value), subject=f"the value of {name!r:.100} in env")
        if "\0" in value:
            raise wrong_argument("env", f"the value of {name!r:.100} in env must not contain NUL characters")
        total += bytes_as_path("env", name) + bytes_as_path("env", value) + 2
    if total > ENVIRONMENT_BYTES_AT_MOST:
        raise must("env", f"be at most {ENVIRONMENT_BYTES_AT_MOST} bytes long in all", Words(f"{total} bytes"))


def check_path(path: object, argument: str = "path") -> None:
    """Check a path in a sandbox; a relative one is below /root."""
    subject = f"a path in {argument}" if argument in ("mounts", "paths") else argument
    if not isinstance(path, str):
        raise must(argument, "be a string", kind_of(path), subject=subject)
    if not path or "\0" in path:
        raise wrong_argument(argument, f"{subject} must not {'be empty' if not path else 'contain NUL characters'}")
    length = bytes_as_path(argument, path)
    if length > PATH_BYTES_AT_MOST:
        raise must(argument, f"be at most {PATH_BYTES_AT_MOST} bytes long", Words(f"{length} bytes"), subject=subject)


def check_flag(value: object, argument: str) -> None:
    if not isinstance(value, bool):
        raise must(argument, "be True or False", value)


def check_compared_paths(paths: object) -> tuple[str, ...] | None:
    """Return the paths to compare, absolute and normalised; a relative one is below /root."""
    if paths is None:
        return None
    if not isinstance(paths, list | tuple | set | frozenset):
        raise must("paths", "be None or a list of paths in the sandbox", kind_of(paths))
    if len(paths) > COMPARED_PATHS_AT_MOST:
        raise must("paths", f"have at most {COMPARED_PATHS_AT_MOST} entries", Words(f"{len(paths)}"))
    for path in paths:
        check_path(path, "paths")
    # normpath keeps two leading slashes, see check_mount.
    return tuple("/" + posixpath.normpath(posixpath.join("/root", path)).lstrip("/") for path in paths)


def check_chunk(chunk: object) -> None:
    check_whole("chunk", chunk, 1, TO_GUEST.blob_bytes)


def check_template_name(name: object, argument: str = "name") -> None:
    if not isinstance(name, str) or not TEMPLATE_NAME.fullmatch(name):
        raise must(argument, "be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit", name)


def check_preload(preload: Iterable[object]) -> None:
    if isinstance(preload, str):
        raise must("preload", "be a list of module names", Words("a string"), hint=f"write preload=[{preload!r:.100}]")
    for module in preload:
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise must("preload", "be a module name as in an import statement", module, subject="each entry of preload")


def check_template(spec: TemplateSpec) -> None:
    """Raise InvalidArgument for a template that no engine can boot."""
    check_template_name(spec.name, "template")
    check_preload(spec.preload)
    if spec.builtin != (spec.name in BUILTIN_TEMPLATES):
        names = ", ".join(map(repr, BUILTIN_TEMPLATES))
        raise must("template", f"have another name than the built-in templates ({names})", spec.name)
    if spec.builtin and spec.preload != BUILTIN_TEMPLATES[spec.name]:
        raise wrong_argument(
            "preload",
            f"preload must not change what the built-in template {spec.name!r} preloads",
            hint="give the template another name",
        )
    links = spec.interpreter.links
    for path in (
        spec.python,
        *spec.interpreter.trees,
        *(at for at, _ in links),
        *filter(None, [spec.interpreter.library]),
    ):
        check_path(path, "python")
        if "\n" in path:
            raise must("python", "not contain line breaks", path, subject="a path of the interpreter in python")
        if not posixpath.isabs(path):
            raise must("python", "be absolute", path, subject="a path of the interpreter in python")


def check_mount(mount: MountSpec) -> None:
    check_path(mount.source, "mounts")
    check_path(mount.target, "mounts")
    if not posixpath.isabs(mount.source):
        raise must("mounts", "be an absolute path of a host folder", mount.source, subject="a source in mounts")
    if not posixpath.isabs(mount.target):
        raise must("mounts", "be an absolute path in the sandbox", mount.target, subject="a target in mounts")
    if "\n" in mount.target:
        # The program that makes a pod reads its description line by line.
        raise must("mounts", "not contain line breaks", mount.target, subject="a target in mounts")
    # normpath keeps two leading slashes, which have a meaning of their own in POSIX but not on Linux.
    target = "/" + posixpath.normpath(mount.target).lstrip("/")
    if ".." in mount.target.split("/"):
        raise must("mounts", "not contain '..'", mount.target, subject="a target in mounts")
    if target == "/" or any(target == taken or target.startswith(taken + "/") for taken in _RESERVED_TARGETS):
        raise must(
            "mounts", f"not be / or below {', '.join(_RESERVED_TARGETS)}", mount.target, subject="a target in mounts"
        )


def check_limits(limits: Limits) -> None:
    check_whole("memory_mib", limits.memory_bytes // MIB, MEMORY_MIB_AT_LEAST, 2**43)
    check_whole("pids", limits.pids, PIDS_AT_LEAST, PIDS_AT_MOST)
    check_whole("disk_mib", limits.disk_bytes // MIB, 1, 2**43)
    check_cpus(limits.cpus)


def check_memory_mib(memory_mib: object) -> None:
    check_whole("memory_mib", memory_mib, MEMORY_MIB_AT_LEAST, 2**43)


def check_cpus(cpus: object) -> None:
    if isinstance(cpus, bool) or not isinstance(cpus, int | float):
        raise must("cpus", "be a number", cpus)
    if not math.isfinite(cpus) or not CPUS_AT_LEAST <= cpus <= CPUS_AT_MOST:
        raise must("cpus", f"be from {CPUS_AT_LEAST} to {CPUS_AT_MOST}", cpus)


def check_sandbox(spec: SandboxSpec) -> None:
    """Check a whole spec. Raise InvalidArgument that names the argument."""
    check_template(spec.template)
    check_limits(spec.limits)
    check_environment(dict(spec.environment))
    check_lifetime(spec.lifetime)
    targets: set[str] = set()
    for mount in spec.mounts:
        check_mount(mount)
        target = posixpath.normpath(mount.target)
        if target in targets:
            raise must("mounts", "be given once", Words(f"{target!r:.100} twice"), subject="each target in mounts")
        targets.add(target)
    spec.check_carried()


def check_thaw(spec: ThawSpec, frozen: SandboxSpec) -> SandboxSpec:
    """Return the whole spec of a sandbox that is thawed from a ``frozen`` one."""
    whole = spec.whole(frozen)
    check_sandbox(whole)
    return whole


def check_whole(argument: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise must(argument, "be a whole number", value)
    if not least <= value <= most:
        raise must(argument, f"be at least {least}" if value < least else f"be at most {most}", value)


def bytes_as_path(argument: str, value: str) -> int:
    try:
        return len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise wrong_argument(
            argument, f"{argument} must be text that UTF-8 can hold, or come from os.fsdecode; it has a lone surrogate"
        ) from None
