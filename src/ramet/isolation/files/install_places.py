"""The folders into which an interpreter installs packages, made writable in pods although another user owns them.

An environment is often made by root and used by another user. In a pod its folders then belong to the overflow uid
("nobody"), and no package could be installed. So a layer of the same folders, empty and owned by the pod, lies between
the tree and the sandbox's upper: a folder that several layers have takes its owner from the topmost. The files in them
keep their owner.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator


def foreign_places(tree: int, version: str) -> Iterator[str]:
    """Folders below this mount that an installer writes to and that do not belong to us."""
    major, minor = version.split(".")[:2]
    library = f"lib/python{major}.{minor}"
    for path in ("bin", "lib", library, f"{library}/site-packages", "share", "share/man", "share/man/man1"):
        try:
            found = os.stat(path, dir_fd=tree, follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid != os.geteuid():
            yield path
