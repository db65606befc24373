"""Copies of the environment that the tests run in, to break things in without harm to the original.

FOLDER/              beside the original, because hard links need the same file system
  1/venv             all files are hard links, but those of the project itself, which are copies
  1/native           sources of the C parts, compiled when one of them is broken
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.breakage import Breakage

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCE = CHECKOUT / "src"
_PACKAGES = ("ramet", "ramet_guest")
_FOR_BUILDING = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE")


class BuildFailed(Exception):
    """A broken C file does not compile: it is a bad breakage."""


class Environment:
    """One copy. Owned by one worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._venv = folder / "venv"
        self.python = self._venv / "bin/python"
        self._packages = self._venv / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        self._native = folder / "native"

    def make(self) -> None:
        shutil.copytree(sys.prefix, self._venv, symlinks=True, copy_function=_link)
        for name in _PACKAGES:
            # Whoever writes to a hard link writes to the original as well.
            shutil.rmtree(self._packages / name)
            shutil.copytree(Path(sysconfig.get_path("purelib")) / name, self._packages / name)
        for script in self._venv.joinpath("bin").iterdir():
            self._lead_here(script)
        self._native.mkdir()
        for name in _FOR_BUILDING:
            original = CHECKOUT / name
            if original.is_dir():
                shutil.copytree(original, self._native / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            else:
                shutil.copy(original, self._native / name)

    def _lead_here(self, script: Path) -> None:
        """The first line of an installed command is the path of the interpreter that it was installed for."""
        original, own = f"#!{sys.prefix}/bin/".encode(), f"#!{self._venv}/bin/".encode()
        if script.is_symlink() or not script.is_file():
            return
        text = script.read_bytes()
        if text.startswith(original):
            mode = script.stat().st_mode
            script.unlink()
            script.write_bytes(own + text.removeprefix(original))
            script.chmod(mode)

    @contextlib.contextmanager
    def broken(self, breakage: Breakage) -> Iterator[None]:
        """Inside, programs of this environment run the broken code."""
        if breakage.native:
            with _replaced(self._native / "src", breakage), self._built():
                yield
        else:
            # Stale code must not be loaded: a file may change without a change of its size and, by the second, of its
            # time. Nobody writes it anew, see `running`.
            source = self._packages / breakage.file
            for cached in source.parent.joinpath("__pycache__").glob(f"{source.stem}.*.pyc"):
                cached.unlink()
            with _replaced(self._packages, breakage):
                yield

    @contextlib.contextmanager
    def _built(self) -> Iterator[None]:
        """Inside, the C parts are those that are compiled from the copy of their sources."""
        made, whole = self._folder / "made", self._folder / "whole"
        command: list[str | Path] = [self.python, "setup.py", "-q", "build_ext", "--build-lib", made]
        command += ["--build-temp", self._folder / "objects"]
        done = subprocess.run(command, cwd=self._native, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildFailed(f"the broken source cannot be compiled:\n{done.stderr.strip()[-2000:]}")
        products = [path.relative_to(made) for path in made.rglob("*") if path.is_file()]
        try:
            for product in products:
                whole.joinpath(product).parent.mkdir(parents=True, exist_ok=True)
                os.replace(self._packages / product, whole / product)
                # A copy: what stays is not made again by the next build, unless its sources have changed.
                shutil.copy2(made / product, self._packages / product)
            yield
        finally:
            for product in products:
                if whole.joinpath(product).exists():
                    os.replace(whole / product, self._packages / product)


@contextlib.contextmanager
def _replaced(folder: Path, breakage: Breakage) -> Iterator[None]:
    path = folder / breakage.file
    whole, broken = path.read_bytes(), breakage.applied_to(folder)
    path.write_text(broken, "utf-8")
    try:
        yield
    finally:
        path.write_bytes(whole)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or a file of somebody else's
        shutil.copy2(source, target, follow_symlinks=False)
