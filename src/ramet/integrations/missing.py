"""The error for a framework that is not installed."""

from __future__ import annotations


def missing(package: str, extra: str) -> ImportError:
    """The error to raise from the ImportError of the package."""
    hint = f"pip install '.[{extra}]', in a checkout of Ramet"
    return ImportError(f"the package {package} is not installed\n\nhint: {hint}", name=package)
