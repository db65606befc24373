"""Files that a Python program of ours may have to read late, behind walls that show it nothing else."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

# Where shared libraries live: extension modules are linked to some, and a resolver loads its own with the first name.
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")


def python_folders() -> list[str]:
    """Where modules come from, also those that are imported late; never a home folder as a whole."""
    package = Path(__file__).resolve().parents[1]
    paths = sysconfig.get_paths()
    found = [*sys.path, *site.getsitepackages(), paths["stdlib"], paths["platstdlib"], str(package)]
    home = os.path.realpath(os.path.expanduser("~"))
    folders = {os.path.realpath(path) for path in found if path}
    return sorted(path for path in folders if not f"{home}/".startswith(f"{path.rstrip('/')}/"))
