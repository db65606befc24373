"""The metrics that every door has, as Prometheus reads them: answered requests, and how long they took.

Labels have few values by construction: a method, a route's template, a status. An id is never a label.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
OTHER = "other"  # the label of a value that is not among the known ones


def make_registry() -> CollectorRegistry:
    """A registry of its own for each door, without the creation time of each series, which would double them."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return CollectorRegistry()


class RequestMetrics:
    """Counts requests in PREFIX_requests and measures them in PREFIX_request_seconds."""

    def __init__(
        self,
        registry: CollectorRegistry,
        prefix: str,
        text: str,
        methods: Collection[str],
        buckets_seconds: Sequence[float],
    ) -> None:
        """``text`` describes the counter. A method that is not among ``methods`` is counted as "other"."""
        self._methods = methods
        self._requests = Counter(f"{prefix}_requests", text, ("method", "route", "status"), registry=registry)
        self._seconds = Histogram(
            f"{prefix}_request_seconds",
            "From a request's head to the end of its answer.",
            ("route",),
            registry=registry,
            buckets=buckets_seconds,
        )
        # Looking up a child by its labels costs more than counting, so each is looked up once.
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request. ``route`` is the template of a route, or "unmatched"."""
        found = self._children.get((method, route, status))
        if found is None:
            # A client chooses the method's name: the table must not grow with each that it invents.
            method = method if method in self._methods else OTHER
            found = self._requests.labels(method, route, str(status)), self._seconds.labels(route)
            self._children[method, route, status] = found
        found[0].inc()
        found[1].observe(seconds)
