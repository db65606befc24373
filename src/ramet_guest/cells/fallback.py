"""Provides IPython, from a folder beside the guest, to interpreters that lack it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# IPython and its dependencies only: the folder must not give other packages to user code.
SERVED = frozenset(
    (
        "IPython",
        "asttokens",
        "decorator",
        "executing",
        "ipython_pygments_lexers",
        "jedi",
        "matplotlib_inline",
        "parso",
        "pexpect",
        "prompt_toolkit",
        "psutil",
        "ptyprocess",
        "pure_eval",
        "pygments",
        "stack_data",
        "traitlets",
        "typing_extensions",
        "wcwidth",
    )
)


class FallbackFinder:
    """Stands last on `sys.meta_path`, so that packages of the interpreter itself come first."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name not in SERVED:
            return None
        return PathFinder.find_spec(name, [self._folder], target)


def install(folder: str) -> None:
    if os.path.isdir(folder):
        sys.meta_path.append(FallbackFinder(folder))
