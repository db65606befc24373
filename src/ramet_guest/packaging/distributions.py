"""Lists the packages of an interpreter by the names of their metadata folders, without importing any of them.

The sandbox's program `pip` and the installer share it, so that they agree. It works in a bare interpreter, which does
not know the virtual environment that it is part of.
"""

from __future__ import annotations

import os
import sys

_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
LIBRARY = f"lib/{_VERSION}/site-packages"


def prefix() -> str:
    """Returns the prefix of the virtual environment, or of the interpreter itself."""
    above = os.path.dirname(os.path.dirname(sys.executable))
    return above if is_virtual(above) else sys.base_prefix


def is_virtual(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def user_base() -> str:
    return os.path.join(os.environ.get("HOME", "/root"), ".local")


def base() -> str | None:
    """Returns the prefix that pip would install to: the interpreter's, or the user's if that is not writable.

    Returns None in a virtual environment that is not writable: it does not look into the user's folder, so pip fails
    and says why.
    """
    own = prefix()
    if os.access(os.path.join(own, LIBRARY), os.W_OK):
        return own
    return None if is_virtual(own) else user_base()


def folders() -> list[str]:
    """Returns the folders that Python searches for packages, in order."""
    own = prefix()
    roots = [own]
    if not is_virtual(own):
        roots.insert(0, user_base())
    found = [os.path.join(root, place, _VERSION, "site-packages") for root in roots for place in ("lib", "lib64")]
    if not is_virtual(own):  # Debian's own layout
        found += [
            os.path.join(own, "local/lib", _VERSION, "dist-packages"),
            os.path.join(own, "lib/python3/dist-packages"),
        ]
    return found


def installed() -> dict[str, tuple[str, str]]:
    """Returns version and folder of each package, by its normalised name."""
    found: dict[str, tuple[str, str]] = {}
    for folder in folders():
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for entry in names:
            known = of_entry(entry)
            if known is not None:
                found.setdefault(known[0], (known[1], folder))
    return found


def of_entry(entry: str) -> tuple[str, str] | None:
    """Returns normalised name and version if this is a package's metadata folder, otherwise None."""
    if not entry.endswith((".dist-info", ".egg-info")) or entry.startswith("~"):
        return None
    name, _, version = entry.rpartition(".")[0].partition("-")
    return (normal(name), version.partition("-py")[0]) if version else None


def normal(name: str) -> str:
    """Normalises a name as the index does: `Some_Name.x` becomes `some-name-x`."""
    words = name.lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(word for word in words if word)
