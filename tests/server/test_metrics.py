"""What Prometheus reads is well formed, by key, and has no label that grows with use."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from ramet.doors.http.routes.metrics import ServerMetrics

STATS: dict[str, object] = {
    "pool": {"ready": 3, "hits": 10, "misses": 2},
    "owners": {
        "key_1": {
            "states": {"idle": 4, "running": 1, "lost": 0},
            "memory_unique_bytes": 1000,
            "memory_shared_bytes": 2000,
            "waiting": 7,
            "connections": {"allowed": 8, "refused": 9},
        },
        "local": {"states": {"idle": 1}, "memory_unique_bytes": 1, "memory_shared_bytes": 2, "waiting": 0},
    },
    "snapshots": 5,
    "spaces": 6,
    "history": {"points": 7, "memory_bytes": 8},
    "images": {
        "written": 3,
        "poured": 2,
        "failures": 1,
        "kinds": {
            "sandbox": {"images": 4, "size_bytes": 5, "oldest_used_ms": 1},
            "snapshot": {"images": 0, "size_bytes": 0, "oldest_used_ms": None},
        },
    },
    "checkpoints_failing": 6,
}


def samples(
    metrics: ServerMetrics, stats: dict[str, object] | None
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.exposition(stats).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_everything_that_is_counted_is_told_by_key() -> None:
    metrics = ServerMetrics({"key_1": "ci"}.get)  # type: ignore[arg-type]
    metrics.cell_ended("key_1", "python", 0.2, "ok")
    metrics.cell_ended("key_1", "python", 0.2, "ok")
    metrics.cell_ended("key_1", "bash", 2, "failed")
    metrics.fork_ended("key_1", 5, 0.05)
    metrics.created("key_1", 0.004)
    metrics.request("POST", "/v1/sandboxes/{id}/exec", 200, 0.01)
    found = samples(metrics, None)
    key = ("key", "ci")
    assert found["ramet_cells_total", (key, ("language", "python"), ("outcome", "ok"))] == 2
    assert found["ramet_cells_total", (key, ("language", "bash"), ("outcome", "failed"))] == 1
    assert found["ramet_cell_seconds_count", (key,)] == 3
    assert found["ramet_forks_total", (key,)] == 5
    assert found["ramet_fork_seconds_count", (key,)] == 1
    assert found["ramet_creates_total", (key,)] == 1
    assert found["ramet_create_seconds_sum", (key,)] == 0.004
    labels = (("method", "POST"), ("route", "/v1/sandboxes/{id}/exec"), ("status", "200"))
    assert found["ramet_http_requests_total", labels] == 1
    assert found["ramet_engine_up", ()] == 0


def test_what_the_engine_says_is_told() -> None:
    found = samples(ServerMetrics(lambda owner: {"key_1": "ci"}.get(owner, owner)), STATS)
    assert found["ramet_engine_up", ()] == 1
    assert found["ramet_pool_hits_total", ()] == 10
    assert found["ramet_pool_misses_total", ()] == 2
    assert found["ramet_pool_ready", ()] == 3
    assert found["ramet_sandboxes", (("key", "ci"), ("state", "idle"))] == 4
    assert found["ramet_sandboxes", (("key", "ci"), ("state", "running"))] == 1
    assert found["ramet_sandboxes", (("key", "local"), ("state", "running"))] == 0
    assert found["ramet_memory_unique_bytes", (("key", "ci"),)] == 1000
    assert found["ramet_memory_shared_bytes", (("key", "ci"),)] == 2000
    tried = "ramet_network_connections_total"
    assert [found[tried, (("decision", word), ("key", "ci"))] for word in ("allowed", "refused")] == [8, 9]
    assert found[tried, (("decision", "refused"), ("key", "local"))] == 0
    counted = ("ramet_images_written_total", "ramet_images_loaded_total", "ramet_image_failures_total")
    assert [found[name, ()] for name in (*counted, "ramet_checkpoints_failing")] == [3, 2, 1, 6]
    assert found["ramet_images", (("kind", "sandbox"),)] == 4
    assert found["ramet_images_bytes", (("kind", "sandbox"),)] == 5
    assert found["ramet_images_oldest_seconds", (("kind", "sandbox"),)] > 1_000_000_000
    assert ("ramet_images_oldest_seconds", (("kind", "snapshot"),)) not in found


def test_words_that_clients_choose_do_not_become_labels() -> None:
    metrics = ServerMetrics()
    for number in range(100):
        metrics.cell_ended("local", f"language{number}", 1, f"outcome{number}")
        metrics.request(f"METHOD{number}", "unmatched", 405, 1)
    found = samples(metrics, None)
    assert found["ramet_cells_total", (("key", "local"), ("language", "other"), ("outcome", "other"))] == 100
    labels = (("method", "other"), ("route", "unmatched"), ("status", "405"))
    assert found["ramet_http_requests_total", labels] == 100
