"""Which packages an interpreter has, read from the names of folders: no module of theirs is imported.

The program `pip` of a sandbox and the installer both ask here, so that they speak of the same thing. It works in a bare
interpreter, which does not know the virtual environment that it is part of.
"""

from __future__ import annotations

import os
import sys

_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
LIBRARY = f"lib/{_VERSION}/site-packages"


def prefix() -> str:
    """Of the virtual environment, or of the interpreter itself."""
    above = os.path.dirname(os.path.dirname(sys.executable))
    return above if is_virtual(above) else sys.base_prefix


def is_virtual(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def user_base() -> str:
    return os.path.join(os.environ.get("HOME", "/root"), ".local")


def base() -> str | None:
    """Where pip would install to: below the interpreter, or below the home folder if that may not be written.

    A virtual environment does not look into the home folder: there pip fails, and says why.
    """
    own = prefix()
    if os.access(os.path.join(own, LIBRARY), os.W_OK):
        return own
    return None if is_virtual(own) else user_base()


def folders() -> list[str]:
    """Where packages are looked for, the first found wins."""
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
    """Version and folder of each package, by its normalised name."""
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
    """Normalised name and version, if it is the folder of a package's metadata."""
    if not entry.endswith((".dist-info", ".egg-info")) or entry.startswith("~"):
        return None
    name, _, version = entry.rpartition(".")[0].partition("-")
    return (normal(name), version.partition("-py")[0]) if version else None


def normal(name: str) -> str:
    """As the index writes it: `Some_Name.x` is `some-name-x`."""
    words = name.lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(word for word in words if word)
