"""Parses numbers with units as people type them: 30d, 12h, 16G, 75%."""

from __future__ import annotations

import argparse
import os
import re

from ramet.isolation.kernel import cgroups
from ramet.protocol.checks import MIB

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_MIB = {"M": 1, "G": 1024, "T": 1024 * 1024}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw])")
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([MGT])(?:i?B)?", re.IGNORECASE)
_SHARE = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)%")
_YEARS_AT_MOST = 100
_MIB_AT_MOST = 2**40


def seconds(text: str) -> float:
    """Parse a duration. The unit is required, so that days are not mistaken for seconds; 0 needs none."""
    if text == "0":
        return 0.0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a number and a unit (s, m, h, d or w), as in 30d, got {text!r}")
    value = float(found[1]) * _SECONDS[found[2]]
    if value > _YEARS_AT_MOST * 365 * _SECONDS["d"]:
        raise argparse.ArgumentTypeError(f"must be at most {_YEARS_AT_MOST} years, got {text!r}")
    return value


def memory_mib(text: str) -> int:
    """Parse a size, or a share of the memory that this machine, container or service has."""
    if share := _SHARE.fullmatch(text):
        value = int(_machine_mib() * float(share[1]) / 100)
    elif size := _SIZE.fullmatch(text):
        value = int(float(size[1]) * _MIB[size[2].upper()])
    else:
        raise argparse.ArgumentTypeError(f"must be a size as in 16G or 512M, or a share as in 75%, got {text!r}")
    if not 1 <= value <= _MIB_AT_MOST:
        raise argparse.ArgumentTypeError(f"must be at least 1M and at most 1048576T, got {text!r}")
    return value


def count_or_none(text: str) -> int | None:
    """Parse a limit: a whole number, or the word none."""
    if text == "none":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise argparse.ArgumentTypeError(f"must be a whole number, or none for no limit, got {text!r}")
    return int(text)


def _machine_mib() -> int:
    most_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit_bytes = cgroups.memory_limit()
    return (most_bytes if limit_bytes is None else min(most_bytes, limit_bytes)) // MIB
