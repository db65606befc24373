"""The engine's record of a sandbox, beside the snapshot in its image on disk, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history.past import Kind, Past, Step
from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.requests import network_request, read_network
from ramet.protocol.network.specs import NetworkSpec

_KINDS: tuple[Kind, ...] = get_args(Kind)
_STEPS_AT_MOST = 2000
ASLEEP_IN_IT = "the sandbox sleeps in it: the next call wakes it"
NOT_KEPT = "it was given up when the sandbox was written to disk"


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """Under which id a sandbox goes on in another engine, and with what. No values of secrets are in here."""

    id: str
    owner: str
    parent: str | None
    persistent: bool
    created_ms: int
    expires_ms: int | None
    network: NetworkSpec | None
    secrets: tuple[str, ...]  # names
    steps: tuple[Step, ...]
    changes: int  # the number of the last one

    @classmethod
    def of(cls, sandbox: Sandbox, changes: int | None = None) -> SandboxRecord:
        network, clock = sandbox.network, sandbox.clock
        if changes is None:
            changes = 0 if sandbox.keeping is None else sandbox.keeping.changes
        return cls(
            sandbox.id,
            sandbox.owner,
            sandbox.identity.parent,
            sandbox.spec.persistent,
            clock.created_ms,
            clock.expires_ms,
            None if network is None else network.spec,
            () if network is None else tuple(secret.spec.name for secret in network.secrets),
            tuple(replace(step, state=None) for step in sandbox.past.steps),
            changes,
        )

    def header(self) -> dict[str, object]:
        return {
            "id": self.id,
            "owner": self.owner,
            "parent": self.parent,
            "persistent": self.persistent,
            "created_ms": self.created_ms,
            "expires_ms": self.expires_ms,
            "network": None if self.network is None else network_request(self.network),
            "secrets": list(self.secrets),
            "steps": [_step_header(step) for step in self.steps],
            "changes": self.changes,
        }

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SandboxRecord:
        """Raises ProtocolError or InvalidArgument."""
        return cls(
            fields.text(header, "id"),
            fields.text(header, "owner"),
            fields.optional_text(header, "parent"),
            fields.flag(header, "persistent"),
            fields.whole(header, "created_ms"),
            fields.optional_whole(header, "expires_ms"),
            read_network("network", header.get("network")),
            fields.texts(header, "secrets"),
            tuple(_read_step(step) for step in fields.array(header, "steps")[:_STEPS_AT_MOST]),
            fields.natural(header, "changes"),
        )

    def past(self, wanted: int | None) -> Past:
        """The past of a sandbox that goes on. Its states are not kept."""
        return Past.remembered(wanted, self.steps)


def _step_header(step: Step) -> dict[str, object]:
    return {
        "number": step.number,
        "kind": step.kind,
        "cell_id": step.cell_id,
        "code": step.code.decode("utf-8", "replace"),
        "outcome": step.outcome,
        "time_ms": step.time_ms,
        "tools": list(step.tools),
        "lost": step.lost,
        "blank": step.blank,
    }


def _read_step(header: object) -> Step:
    if not isinstance(header, dict) or (kind := header.get("kind")) not in _KINDS:
        raise ProtocolError("a step of the history in a record is of no known kind")
    return Step(
        fields.natural(header, "number"),
        kind,
        fields.natural(header, "cell_id"),
        fields.text(header, "code").encode(),
        fields.text(header, "outcome"),
        fields.whole(header, "time_ms"),
        fields.texts(header, "tools"),
        lost=fields.flag(header, "lost"),
        blank=fields.flag(header, "blank"),
        unkept=NOT_KEPT,
    )
