"""The engine's record of a snapshot, as plain data in its image on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ramet.engine.making.carried_state import CarriedState
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.seams import Frozen
from ramet.errors import RametError
from ramet.protocol import fields
from ramet.protocol.tools.specs import GivenTools
from ramet.protocol.values.specs import SandboxSpec


def describe(snapshot: Snapshot) -> dict[str, object]:
    """Nothing secret: not the values of secrets, nor where they may go."""
    spec = replace(snapshot.spec, network=None, secrets=(), persistent=False)
    carried = snapshot.carried
    return {
        "spec": spec.header(),
        "cells": carried.cells,
        "spills": carried.spills,
        "spilled_bytes": carried.spilled_bytes,
        "had_tools": carried.tools is not None,
        "variables": dict(carried.variables),
        "commands": carried.commands,
        "keep_pid": snapshot.keep_pid,
    }


async def rebuild(frozen: Frozen, about: Mapping[str, object], owner: str) -> Snapshot:
    """The snapshot, the caller's. Closes ``frozen`` if it raises: ProtocolError, or RametError for another's image."""
    try:
        spec = SandboxSpec.read(fields.mapping(about, "spec"))
        if spec.owner != owner:
            raise RametError("the image belongs to another owner")
        carried = CarriedState(
            cells=fields.natural(about, "cells"),
            spills=fields.natural(about, "spills"),
            spilled_bytes=fields.natural(about, "spilled_bytes"),
            tools=GivenTools(()) if fields.flag(about, "had_tools") else None,
            variables=fields.text_mapping(about, "variables"),
            commands=fields.optional_text(about, "commands"),
        )
        return Snapshot(frozen, spec, carried, fields.flag(about, "keep_pid"))
    except BaseException:
        await frozen.close()
        raise
