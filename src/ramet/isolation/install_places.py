"""Where an interpreter installs packages to: writable in pods, whoever owns it.

An environment is often made by root and used by somebody who is not. In a pod its folders belong to nobody then, and
no package could be installed into the sandbox's own layer. A layer with the same folders, empty and the pod's own,
between the tree and what the sandbox writes, makes them its own: a folder that several layers have belongs to the owner
of the topmost. What lies in them stays as it is, and nobody's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator


def foreign_places(tree: int, version: str) -> Iterator[str]:
    """Folders below this mount that installing writes to, and that belong to somebody else."""
    major, minor = version.split(".")[:2]
    library = f"lib/python{major}.{minor}"
    for path in ("bin", "lib", library, f"{library}/site-packages", "share", "share/man", "share/man/man1"):
        try:
            found = os.stat(path, dir_fd=tree, follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid != os.geteuid():
            yield path
