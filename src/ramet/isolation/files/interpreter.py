"""Which host folders a Python interpreter needs, found by asking it and following symbolic links."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Sequence

from ramet.errors import InvalidArgument
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Interpreter

# Every pod shows these anyway (skeleton.py), so they are never trees of their own.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")

_QUESTION = """
import sys, json, importlib.util as u
def where(name):
    try: spec = u.find_spec(name)
    except Exception: spec = None
    return (list(spec.submodule_search_locations or []) or [spec.origin])[0] if spec else None
maps = [line.split(None, 5) for line in open("/proc/self/maps", errors="surrogateescape")]
print(json.dumps(dict(version=list(sys.version_info[:3]), implementation=sys.implementation.name,
ipython=where("IPython"), prefixes=[sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
mapped=sorted({fields[5].rstrip("\\n") for fields in maps if len(fields) > 5 and fields[5].startswith("/")}))))
"""

# Libraries without which no interpreter starts. Other mapped files may come from modules or from LD_PRELOAD.
_FIRST_LIBRARIES = re.compile(r"(?:libpython\d[\w.]*|libc(?:-[\d.]+)?|ld(?:-linux[\w-]*|-[\d.]+)?)\.so")


def find(executable: str) -> Interpreter:
    """Find out what `executable` (absolute path) needs. Raises InvalidArgument if it is not a supported CPython."""
    stamp = os.stat(executable)
    # Cached by modification time and inode, so that a replaced interpreter is asked again.
    return _find(executable, stamp.st_mtime_ns, stamp.st_ino)


@functools.lru_cache(maxsize=32)
def _find(executable: str, _modified: int, _inode: int) -> Interpreter:
    answer = _ask(executable)
    version = ".".join(map(str, answer.version))
    if answer.implementation != "cpython" or not (3, 11) <= answer.version[:2] <= (3, 13):
        raise InvalidArgument(
            f"python must be a CPython from 3.11 to 3.13, got {answer.implementation} {version} at {executable}",
            hint="use a CPython from 3.11 to 3.13",
            details={"argument": "python"},
        )
    links: dict[str, str] = {}
    trees = {_follow(prefix, links) for prefix in answer.prefixes}
    # Its links are recorded too, so that the pod has the same path to it.
    _follow(executable, links)
    trees = {tree for tree in trees if not _below(tree, _SYSTEM)}
    # A tree inside another one is shown with it.
    trees = {tree for tree in trees if not _below(tree, tuple(trees - {tree}))}
    for tree in trees:
        if _holds_a_home(tree):
            raise InvalidArgument(
                f"python cannot be {executable}: it is installed directly in {tree}, which sandboxes would see whole",
                hint="use an interpreter or a virtual environment in a folder of its own",
                details={"argument": "python"},
            )
    shown = (*_SYSTEM, *trees)
    links = {at: to for at, to in links.items() if not _below(at, shown)}
    _check_libraries(executable, answer.mapped, shown)
    inside = answer.ipython is not None and _below(_follow(answer.ipython, {}), shown)
    return Interpreter(
        executable=executable,
        version=version,
        trees=tuple(sorted(trees)),
        links=tuple(sorted(links.items())),
        library=None if inside else _own_library(),
    )


def _check_libraries(executable: str, mapped: Sequence[str], shown: tuple[str, ...]) -> None:
    """Check that its own libraries are in folders that a sandbox shows. Raises InvalidArgument."""
    for path in mapped:
        if not _FIRST_LIBRARIES.match(os.path.basename(path)) or not os.path.exists(path):
            continue  # or it was replaced meanwhile
        if not _below(os.path.realpath(path), shown):
            raise InvalidArgument(
                f"python cannot be {executable}: it needs {path}, which is outside its prefix and the "
                "system's folders, and sandboxes cannot see it",
                hint="use an interpreter whose libraries are in its own prefix: Debian's, one of pyenv, uv or conda",
                details={"argument": "python"},
            )


@dataclass(frozen=True, slots=True)
class _Answer:
    """An interpreter's description of itself."""

    version: tuple[int, ...]
    implementation: str
    prefixes: tuple[str, ...]
    ipython: str | None
    mapped: tuple[str, ...] = ()  # files mapped into its memory


def _ask(executable: str) -> _Answer:
    if executable == sys.executable:
        spec = importlib.util.find_spec("IPython")
        ipython = os.path.dirname(spec.origin) if spec and spec.origin else None
        prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
        return _Answer(sys.version_info[:3], sys.implementation.name, prefixes, ipython, _own_maps())
    tried = f"python must be a working Python interpreter; {executable} did not answer as one"
    try:
        done = subprocess.run(
            # On standard input, not as an argument: a program that is not Python quotes its arguments in its error
            # message.
            [executable, "-"],
            input=_QUESTION,
            capture_output=True,
            text=True,
            timeout=30,
            cwd="/",
            check=False,
        )
        if done.returncode == 0:
            said = json.loads(done.stdout)
            return _Answer(
                tuple(said["version"]),
                said["implementation"],
                tuple(said["prefixes"]),
                said["ipython"],
                tuple(said["mapped"]),
            )
        reason = done.stderr.strip()[-500:]
        if not reason or "sys.base_exec_prefix" in reason:  # it quotes our question: another program
            reason = f"it ended with exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError) as error:
        reason = str(error)
    raise InvalidArgument(
        f"{tried}: {reason}", hint="give the path of a working python3 executable", details={"argument": "python"}
    )


def _own_maps() -> tuple[str, ...]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        fields = [line.rstrip("\n").split(None, 5) for line in maps]
    return tuple(sorted({found[5] for found in fields if len(found) > 5 and found[5].startswith("/")}))


def _own_library() -> str | None:
    """The folder with this environment's IPython, for interpreters that have none."""
    spec = importlib.util.find_spec("IPython")
    if spec is None or spec.origin is None:
        return None
    return os.path.realpath(os.path.dirname(os.path.dirname(spec.origin)))


def _holds_a_home(tree: str) -> bool:
    """Whether a prefix contains a home folder or the root: a sandbox would see far more than an interpreter there."""
    homes = {os.path.realpath(os.path.expanduser("~"))}
    with contextlib.suppress(KeyError):
        homes.add(os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir))
    return tree == "/" or any(_below(home, (tree,)) for home in homes)


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _follow(path: str, links: dict[str, str], depth: int = 0) -> str:
    """Resolve a path, and record every symbolic link on the way."""
    current = "/"
    parts = [part for part in path.split("/") if part]
    for index, part in enumerate(parts):
        following = os.path.join(current, part)
        if os.path.islink(following):
            if depth > 40:
                raise InvalidArgument(
                    f"python has too many symbolic links in its path, at {path}", details={"argument": "python"}
                )
            links[following] = os.readlink(following)
            rest = os.path.normpath(os.path.join(current, links[following], *parts[index + 1 :]))
            return _follow(rest, links, depth + 1)
        current = following
    return current
