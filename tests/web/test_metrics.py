"""Requests are counted under few labels, whatever a client sends."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest

from ramet.web.metrics import RequestMetrics, make_registry


def test_requests_are_counted_by_method_route_and_status() -> None:
    registry = make_registry()
    metrics = RequestMetrics(registry, "door", "Requests.", {"GET"}, (1.0,))
    for seconds in (0.5, 2.0):
        metrics.ended("GET", "/things/{id}", 200, seconds)
    lines = generate_latest(registry).decode().splitlines()
    assert 'door_requests_total{method="GET",route="/things/{id}",status="200"} 2.0' in lines
    assert 'door_request_seconds_bucket{le="1.0",route="/things/{id}"} 1.0' in lines


def test_methods_that_a_client_invents_share_one_label() -> None:
    registry = make_registry()
    metrics = RequestMetrics(registry, "door", "Requests.", {"GET"}, (1.0,))
    for method in ("BREW", "WHEN"):
        metrics.ended(method, "unmatched", 405, 0.0)
    text = generate_latest(registry).decode()
    assert 'door_requests_total{method="other",route="unmatched",status="405"} 2.0' in text.splitlines()
    assert "BREW" not in text
