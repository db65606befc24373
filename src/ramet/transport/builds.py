"""Identifies the build of Ramet. Two builds of one version may have different protocols, so a version is not enough."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import ramet.transport

_PACKAGES = ("ramet", "ramet_guest")
_DIGITS = 12


def package_version() -> str:
    found = _distribution()
    return "unknown" if found is None else found.version  # not installed: run from a checkout


@cache
def build() -> str:
    """Return the version and a hash of the installed files, such as ``0.2.0 8c1f03a97be2``. Equal for equal code."""
    found = _distribution()
    digest = hashlib.sha256()
    for line in _installed(found) or _on_disk():
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return f"{package_version()} {digest.hexdigest()[:_DIGITS]}"


def _distribution() -> Distribution | None:
    try:
        return distribution("ramet")
    except PackageNotFoundError:
        return None


def _folder() -> Path:
    """Return the folder that contains the packages."""
    return Path(ramet.transport.__file__).resolve().parent.parent.parent


def _installed(found: Distribution | None) -> list[str]:
    """Return the installer's record, a line with a hash for each file: one file to read instead of all."""
    record = None if found is None else found.read_text("RECORD")
    if found is None or record is None or Path(str(found.locate_file(""))).resolve() != _folder():
        return []
    lines = (line for line in record.splitlines() if line.partition("/")[0] in _PACKAGES)
    return sorted(line for line in lines if "sha256=" in line)


def _on_disk() -> list[str]:
    """Return sizes and modification times, for a checkout, whose files have no recorded hashes."""
    lines = []
    for package in _PACKAGES:
        for folder, folders, names in os.walk(_folder() / package):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in names:
                found = os.stat(os.path.join(folder, name))
                lines.append(f"{os.path.relpath(folder, _folder())}/{name} {found.st_size} {found.st_mtime_ns}")
    return sorted(lines)
