"""The metrics of the server, as Prometheus reads them, and the usage of one sandbox, as JSON.

Labels have few values by construction: a key's name, a route's template, one of a handful of words. An id is never a
label.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.requests.disconnects import ask
from ramet.doors.http.requests.errors import RequestRefused
from ramet.doors.http.requests.exchange import RequestExchange, Route
from ramet.doors.http.requests.json_answers import answer_json
from ramet.doors.http.routes.cell_answers.outcomes import REFUSED
from ramet.errors import RametError
from ramet.protocol import calls, fields
from ramet.web.metrics import CONTENT_TYPE, OTHER, RequestMetrics, make_registry

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))
_LANGUAGES = frozenset(("python", "bash"))
# "ok": exit code 0. "failed": another exit code, or an exception. "lost": the REPL died during the cell.
OUTCOMES = ("ok", "failed", "interrupted", "timeout", "lost", "cancelled", "refused")
_STATES = ("idle", "running", "lost", "hibernated")
_CELL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_FORK_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_REQUEST_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class ServerMetrics:
    """Owns a registry. Looking up a child by its labels costs more than counting, so each is looked up once."""

    def __init__(self, name_of: Callable[[str], str] = lambda owner: owner) -> None:
        """``name_of`` maps an owner to the name of its key."""
        self._name_of = name_of
        self._registry = registry = make_registry()
        self._cells = Counter("ramet_cells", "Cells that ended.", ("key", "language", "outcome"), registry=registry)
        self._cell_seconds = Histogram(
            "ramet_cell_seconds",
            "From the request of a cell to its result.",
            ("key",),
            registry=registry,
            buckets=_CELL_SECONDS,
        )
        self._forks = Counter("ramet_forks", "Children that forks made.", ("key",), registry=registry)
        self._fork_seconds = Histogram(
            "ramet_fork_seconds", "From the request of a fork to its children.", ("key",), registry=registry,
            buckets=_FORK_SECONDS,
        )  # fmt: skip
        self._creates = Counter("ramet_creates", "Sandboxes that were created.", ("key",), registry=registry)
        self._create_seconds = Histogram(
            "ramet_create_seconds", "From the request of a sandbox to its id.", ("key",), registry=registry,
            buckets=_FORK_SECONDS,
        )  # fmt: skip
        self._requests = RequestMetrics(
            registry, "ramet_http", "Requests that were answered.", _METHODS, _REQUEST_SECONDS
        )
        self._cells_of: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}
        self._forks_of: dict[str, tuple[Counter, Histogram]] = {}
        self._creates_of: dict[str, tuple[Counter, Histogram]] = {}
        self._engine = _EngineState(name_of)
        registry.register(self._engine)

    def cell_ended(self, owner: str, language: str, seconds: float, outcome: str) -> None:
        found = self._cells_of.get((owner, language, outcome))
        if found is None:
            name = self._name_of(owner)
            language = language if language in _LANGUAGES else OTHER
            outcome = outcome if outcome in OUTCOMES else OTHER
            found = self._cells.labels(name, language, outcome), self._cell_seconds.labels(name)
            self._cells_of[owner, language, outcome] = found
        found[0].inc()
        if outcome != REFUSED:
            found[1].observe(seconds)

    def fork_ended(self, owner: str, children: int, seconds: float) -> None:
        found = self._forks_of.get(owner)
        if found is None:
            name = self._name_of(owner)
            found = self._forks_of[owner] = self._forks.labels(name), self._fork_seconds.labels(name)
        found[0].inc(children)
        found[1].observe(seconds)

    def created(self, owner: str, seconds: float) -> None:
        found = self._creates_of.get(owner)
        if found is None:
            name = self._name_of(owner)
            found = self._creates_of[owner] = self._creates.labels(name), self._create_seconds.labels(name)
        found[0].inc()
        found[1].observe(seconds)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request. ``route`` is the template of a route, or "unmatched"."""
        self._requests.ended(method, route, status, seconds)

    def exposition(self, stats: Mapping[str, object] | None) -> bytes:
        """All metrics, with the engine's own statistics. ``stats`` None: there is no engine."""
        self._engine.stats = stats
        return generate_latest(self._registry)


class _EngineState(Collector):
    """Metrics that are not counted here but come from the engine for each exposition."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        self._name_of = name_of
        self.stats: Mapping[str, object] | None = None

    def collect(self) -> Iterable[Metric]:
        stats = self.stats
        yield GaugeMetricFamily("ramet_engine_up", "An engine answers.", 0 if stats is None else 1)
        if stats is None:
            return
        pool = fields.mapping(stats, "pool")
        yield CounterMetricFamily("ramet_pool_hits", "Sandboxes that were ready when asked for.", _whole(pool, "hits"))
        yield CounterMetricFamily(
            "ramet_pool_misses", "Sandboxes that had to be made when asked for.", _whole(pool, "misses")
        )
        yield GaugeMetricFamily(
            "ramet_pool_ready", "Sandboxes that are ready to be handed over.", _whole(pool, "ready")
        )
        yield GaugeMetricFamily("ramet_snapshots", "Snapshots that are kept.", _whole(stats, "snapshots"))
        history = fields.optional_mapping(stats, "history") or {}  # an engine of an earlier version tells nothing of it
        yield GaugeMetricFamily("ramet_points", "States that histories keep.", _whole(history, "points"))
        yield GaugeMetricFamily("ramet_points_bytes", "Memory of these states.", _whole(history, "memory_bytes"))
        yield GaugeMetricFamily("ramet_points_on_disk", "Those on disk.", _whole(history, "points_on_disk"))
        yield GaugeMetricFamily("ramet_points_disk_bytes", "What they take there.", _whole(history, "disk_bytes"))
        yield GaugeMetricFamily("ramet_spaces", "Ended persistent sandboxes that are kept.", _whole(stats, "spaces"))
        yield GaugeMetricFamily(
            "ramet_checkpoints_failing",
            "Sandboxes whose state could not be written to disk the last time.",
            _whole(stats, "checkpoints_failing"),
        )
        yield from _of_images(fields.optional_mapping(stats, "images") or {})
        yield from self._by_key(fields.mapping(stats, "owners"))

    def _by_key(self, owners: Mapping[str, object]) -> Iterable[Metric]:
        sandboxes = GaugeMetricFamily("ramet_sandboxes", "Sandboxes there are.", labels=("key", "state"))
        waiting = GaugeMetricFamily("ramet_cells_waiting", "Cells behind a running one.", labels=("key",))
        unique = GaugeMetricFamily(
            "ramet_memory_unique_bytes", "Memory that one sandbox alone has.", labels=("key",), unit="bytes"
        )
        shared = GaugeMetricFamily(
            "ramet_memory_shared_bytes", "Memory that sandboxes share with others.", labels=("key",), unit="bytes"
        )
        connections = CounterMetricFamily(
            "ramet_network_connections", "Connections that sandboxes tried to make.", labels=("key", "decision")
        )
        for owner, of_owner in owners.items():
            if not isinstance(of_owner, dict):
                continue
            name = self._name_of(owner)
            states = fields.mapping(of_owner, "states")
            for state in _STATES:
                sandboxes.add_metric((name, state), _whole(states, state))
            waiting.add_metric((name,), _whole(of_owner, "waiting"))
            unique.add_metric((name,), _whole(of_owner, "memory_unique_bytes"))
            shared.add_metric((name,), _whole(of_owner, "memory_shared_bytes"))
            tried = fields.optional_mapping(of_owner, "connections") or {}
            for decision in ("allowed", "refused"):
                connections.add_metric((name, decision), _whole(tried, decision))
        return sandboxes, waiting, unique, shared, connections


def _of_images(images: Mapping[str, object]) -> Iterable[Metric]:
    """Of the folder of images, which engines of the same user share. Empty where there is none."""
    for name, key, what in (
        ("ramet_images_written", "written", "Images that this engine wrote."),
        ("ramet_images_loaded", "poured", "Images that this engine made processes from."),
        ("ramet_image_failures", "failures", "Images that could not be written, or were refused."),
    ):
        yield CounterMetricFamily(name, what, _whole(images, key))
    counts = GaugeMetricFamily("ramet_images", "Images on disk.", labels=("kind",))
    sizes = GaugeMetricFamily("ramet_images_bytes", "What they take there.", labels=("kind",))
    ages = GaugeMetricFamily("ramet_images_oldest_seconds", "Since the least used one was used.", labels=("kind",))
    for kind, of_kind in (fields.optional_mapping(images, "kinds") or {}).items():
        if not isinstance(of_kind, dict):
            continue
        counts.add_metric((kind,), _whole(of_kind, "images"))
        sizes.add_metric((kind,), _whole(of_kind, "size_bytes"))
        if of_kind.get("oldest_used_ms") is not None:
            ages.add_metric((kind,), max(0.0, time.time() - _whole(of_kind, "oldest_used_ms") / 1000))
    yield from (counts, sizes, ages)


def _whole(values: Mapping[str, object], name: str) -> int:
    value = values.get(name)
    return value if type(value) is int else 0


@api.operation(
    "metrics",
    "server",
    "Counters and histograms, for Prometheus",
    {
        200: api.answer(
            "The text format of Prometheus.",
            api.text(),
            'ramet_sandboxes{key="ci",state="idle"} 3.0\n',
            kind="text/plain",
        )
    },
    help="For callers without a key on loopback, and for keys of the scope `metrics`.",
    errors=(401, 403),
)
async def _exposition(exchange: RequestExchange) -> None:
    if exchange.key is not None and exchange.key.scope == "sandboxes":
        raise RequestRefused(
            403,
            "this key does not see the metrics of the server; one that does: ramet keys create --metrics",
            code="unauthorized",
        )
    try:
        stats: Mapping[str, object] | None = (await ask(exchange, calls.STATS, {})).header
    except RametError:
        stats = None  # the server's own counts matter most when the engine is down
    body = exchange.metrics.exposition(stats)
    await exchange.respond(200, [(b"content-type", CONTENT_TYPE.encode("ascii"))], body)


@api.operation(
    "sandboxMetrics",
    "sandboxes",
    "What one sandbox uses",
    {200: api.answer("Memory, processor time, processes.", api.ref("SandboxMetrics"))},
)
async def _of_one(exchange: RequestExchange, sandbox_id: str) -> None:
    info = (await ask(exchange, calls.INFO, {"sandbox": sandbox_id, "owner": exchange.owner})).header
    await answer_json(exchange, {name: info.get(name) for name in ("id", "state", "waiting", "usage", "limits")})


ROUTES: list[Route] = [
    ("GET", "/metrics", _exposition),
    ("GET", "/v1/sandboxes/{sandbox_id}/metrics", _of_one),
]
