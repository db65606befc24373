"""The owner's folders for what is kept from one engine to the next: packages that sandboxes install, and images."""

from __future__ import annotations

import hashlib
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


def owner_part(owner: str) -> str:
    """What stands for an owner in the names of its images."""
    return hashlib.sha256(owner.encode()).hexdigest()[:16]


def saved_image_name(owner: str, name: str) -> str:
    """The name in the store of images of a snapshot that an owner has saved: owners never see each other's."""
    return f"saved-{owner_part(owner)}-{name}"


def space_image_name(owner: str, space_id: str) -> str:
    """The same for the kept state of a persistent sandbox."""
    return f"space-{owner_part(owner)}-{space_id}"


def passing_image_name(owner: str, random: str) -> str:
    """The same for an image that is on its way out of the store, or in."""
    return f"passing-{owner_part(owner)}-{random}"


def has_saved_image(name: str) -> bool:
    """Whether this user has a snapshot on disk by this name."""
    folder = find("images")
    return folder is not None and os.path.isfile(os.path.join(folder, "names", saved_image_name("", name)))
