"""The folder in which doors keep what must outlive them, and where it is by default."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder(chosen: str | None = None) -> Path:
    """The chosen folder, else ``RAMET_STATE``, else ``ramet`` in the user's state folder (XDG base directories)."""
    if chosen:
        return Path(chosen).expanduser().absolute()
    if named := os.environ.get("RAMET_STATE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "ramet"
