"""Makes a folder of installed packages, in a sandbox that the engine made for nothing else.

No code of the packages runs: only wheels are taken, and those are unpacked and compiled. What comes out lies below the
folder that is asked for: `tree`, with everything at the place it has below a prefix, and `about.json`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from ramet_guest import distributions


def main(request: str) -> int:
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
    """Prints what pip prints."""
    options = [
        "--only-binary=:all:", "--no-compile", "--no-cache-dir", "--no-input", "--disable-pip-version-check",
        "--progress-bar=off", "--no-warn-script-location", "--no-warn-conflicts", f"--prefix={tree}",
    ]  # fmt: skip
    options += [f"--{name.replace('_', '-')}" for name in ("upgrade", "pre", "no_deps") if asked.get(name)]
    requirements = asked["requirements"]
    assert isinstance(requirements, list)
    arguments = [sys.executable, "-m", "pip", "install", *options, "--", *map(str, requirements)]
    # Once: whoever asked tries it with patience if this fails, and sees what comes back.
    environment = {**os.environ, "PIP_RETRIES": "0"}
    return subprocess.run(
        arguments, stdin=subprocess.DEVNULL, check=False, cwd="/", env=environment, preexec_fn=alone
    ).returncode


def alone() -> None:
    """No other process may be begun from here on.

    A wheel may need another package by its URL, and what is named so may be sources, whatever is said of wheels: pip
    would run the code in them to build one, in a process of its own.
    """
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def default_index() -> str | None:
    """As the pip of this interpreter has it."""
    program = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    arguments = [sys.executable, "-I", "-c", program]
    found = subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/", encoding="utf-8"
    )
    return found.stdout.strip() or None if found.returncode == 0 else None


def straighten(tree: str) -> None:
    """One layout for all: `lib/pythonX.Y/site-packages`, also where a distribution has its own."""
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
    # Everything was there already: there is a tree all the same, with nothing in it.
    os.makedirs(os.path.join(tree, distributions.LIBRARY), exist_ok=True)


def compile_all(tree: str) -> None:
    """By as many processes as there are processors; pip itself uses one.

    What does not compile is left alone, without a word: packages often have files for another Python.
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
