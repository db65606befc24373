"""Installs packages into a folder, in a sandbox that the engine made for this alone.

No code of the packages runs: only wheels are accepted, unpacked and compiled. The requested folder then contains
`tree`, with every file at its place below a prefix, and `about.json`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from ramet_guest.packaging import distributions


def main(request: str) -> int:
    """Carries out a request of the engine. Returns pip's exit code."""
    asked = json.loads(request)
    base = {name: version for name, (version, _) in distributions.installed().items()}
    if asked.get("only_base"):
        return write_about(asked["folder"], base, {}, default_index())
    tree = os.path.join(asked["folder"], "tree")
    code = run_pip(asked, tree)
    if code:
        return code
    straighten(tree)
    compile_all(tree)
    return write_about(asked["folder"], base, added_to(tree))


def run_pip(asked: dict[str, object], tree: str) -> int:
    """Runs pip, which prints its own output."""
    options = [
        "--only-binary=:all:", "--no-compile", "--no-cache-dir", "--no-input", "--disable-pip-version-check",
        "--progress-bar=off", "--no-warn-script-location", "--no-warn-conflicts", f"--prefix={tree}",
    ]  # fmt: skip
    options += [f"--{name.replace('_', '-')}" for name in ("upgrade", "pre", "no_deps") if asked.get(name)]
    requirements = asked["requirements"]
    assert isinstance(requirements, list)
    arguments = [sys.executable, "-m", "pip", "install", *options, "--", *map(str, requirements)]
    # One attempt: if it fails, pip in the asking sandbox retries and shows the answer.
    environment = {**os.environ, "PIP_RETRIES": "0"}
    return subprocess.run(
        arguments, stdin=subprocess.DEVNULL, check=False, cwd="/", env=environment, preexec_fn=alone
    ).returncode


def alone() -> None:
    """Forbids further processes.

    A wheel may require another package by URL, and that may be a source package in spite of `--only-binary`: pip would
    build it by running its code, in a process of its own.
    """
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def default_index() -> str | None:
    """Returns the index that this interpreter's pip uses by default."""
    program = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    arguments = [sys.executable, "-I", "-c", program]
    found = subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/", encoding="utf-8"
    )
    return found.stdout.strip() or None if found.returncode == 0 else None


def straighten(tree: str) -> None:
    """Renames folders to one layout, `lib/pythonX.Y/site-packages`, where a distribution has its own."""
    local = os.path.join(tree, "local")
    if os.path.isdir(local) and not os.path.islink(local):
        for name in os.listdir(local):
            os.rename(os.path.join(local, name), os.path.join(tree, name))
        os.rmdir(local)
    version = os.path.basename(os.path.dirname(distributions.LIBRARY))
    for place in ("lib", "lib64"):
        theirs = os.path.join(tree, place, version, "dist-packages")
        if os.path.isdir(theirs):
            os.rename(theirs, os.path.join(tree, place, version, "site-packages"))
    # If every package was already installed, the tree exists all the same, empty.
    os.makedirs(os.path.join(tree, distributions.LIBRARY), exist_ok=True)


def compile_all(tree: str) -> None:
    """Compiles with one process per processor; pip itself uses one.

    Skips files that do not compile, silently: packages often contain files for another version of Python.
    """
    workers = len(os.sched_getaffinity(0))
    arguments = [sys.executable, "-m", "compileall", "-qq", "-j", str(min(workers, 8)), os.path.join(tree, "lib")]
    subprocess.run(arguments, stdin=subprocess.DEVNULL, check=False, cwd="/")


def added_to(tree: str) -> dict[str, str]:
    found = {}
    for place in ("lib", "lib64"):
        folder = os.path.join(tree, place, os.path.relpath(distributions.LIBRARY, "lib"))
        for entry in os.listdir(folder) if os.path.isdir(folder) else ():
            known = distributions.of_entry(entry)
            if known is not None:
                found[known[0]] = known[1]
    return found


def write_about(folder: str, base: dict[str, str], added: dict[str, str], index: str | None = None) -> int:
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "about.json"), "w", encoding="utf-8") as file:
        json.dump({"base": base, "added": added, "index": index}, file, sort_keys=True)
    return 0
