"""Which folders of the host a Python interpreter needs to run, found by asking it and following symbolic links."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import pwd
import subprocess
import sys
from dataclasses import dataclass

from ramet.errors import InvalidArgument
from ramet.protocol.specs import Interpreter

# Shown in every pod anyway (skeleton.py), so never a tree of their own.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")

_QUESTION = """
import sys, json, importlib.util as u
def where(name):
    try: spec = u.find_spec(name)
    except Exception: spec = None
    return (list(spec.submodule_search_locations or []) or [spec.origin])[0] if spec else None
print(json.dumps(dict(version=list(sys.version_info[:3]), implementation=sys.implementation.name,
ipython=where("IPython"), prefixes=[sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix])))
"""


def find(executable: str) -> Interpreter:
    """What `executable` (absolute) needs. Raises InvalidArgument when it is not a CPython we support."""
    stamp = os.stat(executable)
    return _find(executable, stamp.st_mtime_ns, stamp.st_ino)


@functools.lru_cache(maxsize=32)
def _find(executable: str, _modified: int, _inode: int) -> Interpreter:
    answer = _ask(executable)
    version = ".".join(map(str, answer.version))
    if answer.implementation != "cpython" or not (3, 11) <= answer.version[:2] <= (3, 13):
        raise InvalidArgument(
            f"python: {executable} is {answer.implementation} {version}",
            hint="use a CPython from 3.11 to 3.13",
            details={"argument": "python"},
        )
    links: dict[str, str] = {}
    trees = {_follow(prefix, links) for prefix in answer.prefixes}
    _follow(executable, links)
    trees = {tree for tree in trees if not _below(tree, _SYSTEM)}
    trees = {tree for tree in trees if not _below(tree, tuple(trees - {tree}))}
    for tree in trees:
        if _holds_a_home(tree):
            raise InvalidArgument(
                f"python: {executable} is installed in {tree} itself, which sandboxes would see as a whole",
                hint="use an interpreter or a virtual environment in a folder of its own",
                details={"argument": "python"},
            )
    shown = (*_SYSTEM, *trees)
    links = {at: to for at, to in links.items() if not _below(at, shown)}
    inside = answer.ipython is not None and _below(_follow(answer.ipython, {}), shown)
    return Interpreter(
        executable=executable,
        version=version,
        trees=tuple(sorted(trees)),
        links=tuple(sorted(links.items())),
        library=None if inside else _own_library(),
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What an interpreter says of itself."""

    version: tuple[int, ...]
    implementation: str
    prefixes: tuple[str, ...]
    ipython: str | None


def _ask(executable: str) -> _Answer:
    if executable == sys.executable:
        spec = importlib.util.find_spec("IPython")
        ipython = os.path.dirname(spec.origin) if spec and spec.origin else None
        prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
        return _Answer(sys.version_info[:3], sys.implementation.name, prefixes, ipython)
    tried = f"python: cannot ask {executable} what it is"
    try:
        done = subprocess.run(
            [executable, "-c", _QUESTION], capture_output=True, text=True, timeout=30, cwd="/", check=False
        )
        if done.returncode == 0:
            said = json.loads(done.stdout)
            return _Answer(tuple(said["version"]), said["implementation"], tuple(said["prefixes"]), said["ipython"])
        reason = done.stderr.strip()[-500:] or f"it ended with {done.returncode}"
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError) as error:
        reason = str(error)
    raise InvalidArgument(
        f"{tried}: {reason}", hint="give the path of a working python3 executable", details={"argument": "python"}
    )


def _own_library() -> str | None:
    """The folder with this environment's IPython, for interpreters that have none."""
    spec = importlib.util.find_spec("IPython")
    if spec is None or spec.origin is None:
        return None
    return os.path.realpath(os.path.dirname(os.path.dirname(spec.origin)))


def _holds_a_home(tree: str) -> bool:
    """A prefix such as the home folder of whoever calls, or what is above it: more than an interpreter lives there."""
    homes = {os.path.realpath(os.path.expanduser("~"))}
    with contextlib.suppress(KeyError):
        homes.add(os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir))
    return tree == "/" or any(_below(home, (tree,)) for home in homes)


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _follow(path: str, links: dict[str, str], depth: int = 0) -> str:
    """The real path, with every symbolic link met on the way noted."""
    current = "/"
    parts = [part for part in path.split("/") if part]
    for index, part in enumerate(parts):
        following = os.path.join(current, part)
        if os.path.islink(following):
            if depth > 40:
                raise InvalidArgument(f"python: too many symbolic links at {path}", details={"argument": "python"})
            links[following] = os.readlink(following)
            rest = os.path.normpath(os.path.join(current, links[following], *parts[index + 1 :]))
            return _follow(rest, links, depth + 1)
        current = following
    return current
