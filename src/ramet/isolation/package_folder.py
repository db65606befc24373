"""Where packages that sandboxes have installed are kept between engines: a folder of the owner's, made if need be."""

from __future__ import annotations

import os
from pathlib import Path


def find() -> str | None:
    """None where there is no such folder, or not one of ours alone: then an engine keeps them in memory."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    try:
        above = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
        folder = above / "ramet" / "packages"
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the mode is not for those above it
        folder.mkdir(mode=0o700, exist_ok=True)
        resolved = folder.resolve(strict=True)
        places = (resolved.stat(), resolved.parent.stat())
    except (OSError, RuntimeError):
        return None
    # Whoever else could write to it, or put another in its place, could give sandboxes other packages.
    if any(about.st_uid != os.geteuid() or about.st_mode & 0o022 for about in places):
        return None
    return str(resolved)
