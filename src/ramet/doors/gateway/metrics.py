"""The metrics of the gateway, as Prometheus reads them. Labels have few values: no id, no key, no tool's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge
from prometheus_client.exposition import generate_latest

from ramet.doors.gateway.kinds import OWN_TOOLS
from ramet.web.metrics import OTHER, RequestMetrics, make_registry

_STOP_REASONS = frozenset(
    (
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "refusal",
        "model_context_window_exceeded",
    )
)
_METHODS = frozenset(("GET", "HEAD", "POST", "DELETE"))
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """Owns a registry."""

    def __init__(self) -> None:
        self._registry = registry = make_registry()
        self._requests = RequestMetrics(registry, "ramet_gateway", "Requests answered.", _METHODS, _SECONDS)
        self._turns = Counter(
            "ramet_gateway_turns", "Answers made, by how they ended.", ("outcome",), registry=registry
        )
        self._samples = Counter(
            "ramet_gateway_samples", "Times the upstream was asked, by how that ended.", ("outcome",), registry=registry
        )
        self._cells = Counter("ramet_gateway_cells", "Cells that ended.", ("tool", "outcome"), registry=registry)
        self._calls = Counter("ramet_gateway_tool_calls", "Calls of clients' tools that code made.", registry=registry)
        self._continuations_again = Counter(
            "ramet_gateway_continuations_again",
            "Tool results that came once more and got the answer that there was.",
            registry=registry,
        )
        self._tokens = Counter(
            "ramet_gateway_upstream_tokens", "Tokens as the upstream counts them.", ("kind",), registry=registry
        )
        self._kept_out = Counter(
            "ramet_gateway_tokens_kept_out",
            "Estimate of tokens that the model did not read: characters / 4 of tool results that went to code.",
            registry=registry,
        )
        self._gauges: list[Gauge] = []

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Register a gauge whose value is read when metrics are collected."""
        gauge = Gauge(f"ramet_gateway_{name}", text, registry=self._registry)
        gauge.set_function(value)
        self._gauges.append(gauge)

    def request_ended(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.ended(method, route, status, seconds)

    def turn_ended(self, outcome: str) -> None:
        self._turns.labels(outcome if outcome in _STOP_REASONS or outcome == "error" else OTHER).inc()

    def sample_ended(self, usage: Mapping[str, Any] | None) -> None:
        """Count a sample; ``usage`` None: it failed."""
        self._samples.labels("error" if usage is None else "ok").inc()
        for kind in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            count = None if usage is None else usage.get(kind)
            if isinstance(count, int) and count > 0:
                self._tokens.labels(kind.removesuffix("_tokens")).inc(count)

    def cell_ended(self, tool: str, block: Mapping[str, Any]) -> None:
        content = block.get("content")
        outcome = "ok"
        if isinstance(content, dict):
            if str(content.get("type", "")).endswith("_error"):
                outcome = "error"
            elif content.get("return_code"):
                outcome = "failed"
        self._cells.labels(tool if tool in OWN_TOOLS else OTHER, outcome).inc()

    def called(self, calls: int) -> None:
        self._calls.inc(calls)

    def kept_out(self, tokens: int) -> None:
        self._kept_out.inc(tokens)

    def continued_again(self) -> None:
        self._continuations_again.inc()

    def exposition(self) -> bytes:
        return generate_latest(self._registry)
