"""What an owner has at an engine besides sandboxes: snapshots, and templates that were saved from some."""

from __future__ import annotations

from typing import NamedTuple

from ramet.client import blocking, operations
from ramet.client.arguments import server_for
from ramet.client.forks import Snapshot
from ramet.client.handle import SnapshotHandle
from ramet.protocol import calls, fields
from ramet.protocol.frames import encode
from ramet.transport.embedded import default_engine


class Inventory(NamedTuple):
    """Names of saved templates, and ids of snapshots."""

    templates: tuple[str, ...]
    snapshots: tuple[str, ...]


def inventory(url: str) -> Inventory:
    return blocking.perform(server_for(None, url, None) or default_engine(), _ask())


def _ask() -> operations.Operation[Inventory]:
    frame = yield from operations.ask(encode(calls.SANDBOXES, {}))
    return Inventory(fields.texts(frame.header, "templates"), fields.texts(frame.header, "snapshots"))


def snapshot_with_id(url: str, snapshot_id: str) -> Snapshot:
    """A handle of a snapshot that exists. It may be forgotten: the snapshot then stays."""
    engine = server_for(None, url, None) or default_engine()
    return Snapshot(SnapshotHandle(engine, snapshot_id, owned=False))
