"""One of each kind of descriptor, and what must be seen through it, in a copy and in the original alike.

A thing is set up in a process; what it returns is run there again after the process was read, and in a copy of it that
got its descriptors from the list of calls. Nothing here may depend on which of the two it runs in.
"""

from __future__ import annotations

from tests.fork import (
    descriptors_of_events,
    descriptors_of_files,
    descriptors_of_memory,
    descriptors_of_network,
    descriptors_of_others,
    descriptors_of_pipes,
    descriptors_of_unix,
)
from tests.fork.descriptors_registry import THINGS, Check

__all__ = [
    "THINGS",
    "Check",
    "descriptors_of_events",
    "descriptors_of_files",
    "descriptors_of_memory",
    "descriptors_of_network",
    "descriptors_of_others",
    "descriptors_of_pipes",
    "descriptors_of_unix",
]
