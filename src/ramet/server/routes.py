"""Every route of the server."""

from __future__ import annotations

from ramet.server import (
    calling,
    documentation,
    execution,
    files,
    health,
    metrics,
    networks,
    ports,
    sandboxes,
    snapshots,
    terminals,
)
from ramet.server.exchange import Route

ROUTES: list[Route] = [
    *calling.ROUTES,
    *sandboxes.ROUTES,
    *execution.ROUTES,
    *files.ROUTES,
    *snapshots.ROUTES,
    *terminals.ROUTES,
    *networks.ROUTES,
    *ports.ROUTES,
    *metrics.ROUTES,
    *health.ROUTES,
    *documentation.ROUTES,
]
