"""Every route of the server."""

from __future__ import annotations

from ramet.doors.http.documentation import pages
from ramet.doors.http.requests.exchange import Route
from ramet.doors.http.routes import (
    call,
    cells,
    files,
    health,
    history,
    metrics,
    network,
    ports,
    sandboxes,
    snapshot_files,
    snapshots,
    terminals,
)

ROUTES: list[Route] = [
    *call.ROUTES,
    *sandboxes.ROUTES,
    *cells.ROUTES,
    *files.ROUTES,
    *snapshots.ROUTES,
    *snapshot_files.ROUTES,
    *history.ROUTES,
    *terminals.ROUTES,
    *network.ROUTES,
    *ports.ROUTES,
    *metrics.ROUTES,
    *health.ROUTES,
    *pages.ROUTES,
]
