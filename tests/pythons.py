"""Other interpreters of this machine, for sandboxes that run another Python than the tests do."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSIONS = ("3.11", "3.12", "3.13")


def python_of(version: str, folder: Path) -> str:
    """An empty environment of this version, made in the folder; skips the test where there is no such Python.

    One without packages: an installed IPython would be used in place of the one that Ramet brings.
    """
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    name = f"python{version}"
    for candidate in (name, *sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/{name}")))):
        try:
            # Tried, not just looked for: pyenv leaves programs in the path that only say that they are not there.
            subprocess.run([candidate, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return str(folder / "bin" / "python")
    pytest.skip(f"this machine has no Python {version}")
