"""Lists the snapshots and saved templates that an owner has at an engine, for the command line."""

from __future__ import annotations

from ramet.client.blocking.forks import Snapshot
from ramet.client.drivers import blocking
from ramet.client.handle import SnapshotHandle
from ramet.client.operations import sandboxes
from ramet.client.operations.sandboxes import Inventory


def inventory(url: str) -> Inventory:
    """Ask the engine behind a server, or that of this process if ``url`` is empty."""
    return blocking.perform(blocking.engine_at(url, None), sandboxes.inventory())


def snapshot_with_id(url: str, snapshot_id: str) -> Snapshot:
    """Return a handle of a snapshot that exists. It may be forgotten: the snapshot then stays."""
    return Snapshot(SnapshotHandle(blocking.engine_at(url, None), snapshot_id, owned=False))
