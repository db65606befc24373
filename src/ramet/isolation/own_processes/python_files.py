"""Files that our own confined Python processes may have to read late, when they see nothing else of the host."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

# Folders of shared libraries: extension modules link to some, and a C library loads its resolvers with the first
# lookup.
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")


def python_folders() -> list[str]:
    """Folders that modules are imported from, also late. Never a folder that contains the home folder."""
    package = Path(__file__).resolve().parents[2]
    paths = sysconfig.get_paths()
    found = [*sys.path, *site.getsitepackages(), paths["stdlib"], paths["platstdlib"], str(package)]
    found.append(str(package.with_name("ramet_guest")))  # its module `wire`, which ours import
    home = os.path.realpath(os.path.expanduser("~"))
    folders = {os.path.realpath(path) for path in found if path}
    return sorted(path for path in folders if not f"{home}/".startswith(f"{path.rstrip('/')}/"))
