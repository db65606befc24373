"""An owner's quota, and the most of the network that it may use.

A server sends it with each call that makes something. The engine enforces it, because it knows what exists and what is
being made.
"""

from __future__ import annotations

from collections.abc import Mapping

from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.specs import NetworkSpec


@dataclass(frozen=True, slots=True)
class Allowance:
    """A quota; None means no limit."""

    sandboxes: int | None = None
    memory_bytes: int | None = None  # the sum of the memory limits of its sandboxes
    templates: int | None = None  # the owner's own templates: with a preload of its own, or saved from snapshots
    image_bytes: int | None = None  # of its snapshots on disk
    network: NetworkSpec | None = None  # the most that rules may ask for, see ``network.specs.beyond``
    # Limits for all owners together, set by the operator of the server.
    all_sandboxes: int | None = None
    all_memory_bytes: int | None = None

    def header(self) -> dict[str, object]:
        return {
            "sandboxes": self.sandboxes,
            "memory_bytes": self.memory_bytes,
            "templates": self.templates,
            "image_bytes": self.image_bytes,
            "network": None if self.network is None else self.network.header(),
            "all_sandboxes": self.all_sandboxes,
            "all_memory_bytes": self.all_memory_bytes,
        }

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Allowance:
        """Read the quota from the header of a call, where it may be missing."""
        given = fields.optional_mapping(header, "allowance")
        if given is None:
            return cls()
        network = fields.optional_mapping(given, "network")
        return cls(
            sandboxes=fields.optional_whole(given, "sandboxes"),
            memory_bytes=fields.optional_whole(given, "memory_bytes"),
            templates=fields.optional_whole(given, "templates"),
            image_bytes=fields.optional_whole(given, "image_bytes"),
            network=None if network is None else NetworkSpec.read(network),
            all_sandboxes=fields.optional_whole(given, "all_sandboxes"),
            all_memory_bytes=fields.optional_whole(given, "all_memory_bytes"),
        )
