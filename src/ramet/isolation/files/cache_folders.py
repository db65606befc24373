"""The owner's folders for what is kept from one engine to the next: packages that sandboxes install, and images."""

from __future__ import annotations

import os
from pathlib import Path


def find(name: str) -> str | None:
    """The folder, created if necessary. None if there is none that only we can write: an engine then keeps nothing."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    try:
        above = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
        folder = above / "ramet" / name
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # mkdir applies the mode to the last folder only
        folder.mkdir(mode=0o700, exist_ok=True)
        resolved = folder.resolve(strict=True)
        places = (resolved.stat(), resolved.parent.stat())
    except (OSError, RuntimeError):
        return None
    # A user who could write to it, or replace it, could give sandboxes other packages or another memory.
    if any(about.st_uid != os.geteuid() or about.st_mode & 0o022 for about in places):
        return None
    return str(resolved)
