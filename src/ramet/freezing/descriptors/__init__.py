"""Open descriptors and shared memory of a paused process: read as plain data, made again by a list of system calls.

Imports ``ramet.isolation`` and what is below it. ``reading`` and ``maps`` run during the pause. ``compiling`` turns
their results into calls for the copy, later. Each kind of descriptor has a file that says how it is read and made
again.
"""

from ramet.freezing.calls import InjectedCall
from ramet.freezing.descriptors.compiling import compile_calls
from ramet.freezing.descriptors.maps import SharedMap, check_amount, privatize, read_shared_maps, with_ranges
from ramet.freezing.descriptors.reading import read_descriptors
from ramet.freezing.descriptors.recipes import OpenDescriptors
from ramet.freezing.descriptors.target import Lines, PausedProcess

__all__ = [
    "InjectedCall",
    "OpenDescriptors",
    "Lines",
    "SharedMap",
    "PausedProcess",
    "check_amount",
    "compile_calls",
    "privatize",
    "read_descriptors",
    "read_shared_maps",
    "with_ranges",
]
