"""/metrics of a running server: who sees it, what it counts, and that no id of a sandbox is in it."""

from __future__ import annotations

import re

import pytest

from tests.server.asking import Caller
from tests.server.running import Server


@pytest.fixture
def caller(shared_server: Server) -> Caller:
    return Caller(shared_server.url)


def value(text: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_metrics_are_seen_without_a_key_on_loopback_and_with_a_key_for_them(
    shared_server: Server, caller: Caller
) -> None:
    assert caller.ask("GET", "/metrics").headers["content-type"].startswith("text/plain")
    ordinary = Caller(shared_server.url, shared_server.create_key("no-metrics"))
    refused = ordinary.ask("GET", "/metrics")
    assert (refused.status, refused.code) == (403, "unauthorized")
    scraper = Caller(shared_server.url, shared_server.create_key("scraper", "--metrics"))
    assert b"ramet_engine_up 1.0" in scraper.ask("GET", "/metrics").body
    for method, target in (("POST", "/v1/sandboxes"), ("GET", "/v1/sandboxes"), ("POST", "/v1/call"), ("GET", "/v1/x")):
        assert scraper.ask(method, target).status == 403


def test_cells_forks_and_requests_are_counted_by_key(shared_server: Server) -> None:
    user = Caller(shared_server.url, shared_server.create_key("counted"))
    scraper = Caller(shared_server.url)
    made = user.sandbox()
    user.run(made, "1")
    user.run(made, "1/0")
    user.run(made, "true", "bash")
    nobody = f"/v1/sandboxes/sbx_{0:032x}/exec"
    assert user.ask("POST", nobody, {"code": "1"}).status == 404
    assert user.ask("POST", f"/v1/sandboxes/{made}/fork", {"n": 2}).status == 201
    text = scraper.ask("GET", "/metrics").body.decode()
    assert value(text, 'ramet_cells_total{key="counted",language="python",outcome="ok"}') == 1
    assert value(text, 'ramet_cells_total{key="counted",language="python",outcome="failed"}') == 1
    assert value(text, 'ramet_cells_total{key="counted",language="python",outcome="refused"}') == 1
    assert value(text, 'ramet_cells_total{key="counted",language="bash",outcome="ok"}') == 1
    assert value(text, 'ramet_cell_seconds_count{key="counted"}') == 3
    assert value(text, 'ramet_forks_total{key="counted"}') == 2
    assert value(text, 'ramet_creates_total{key="counted"}') == 1
    assert value(text, 'ramet_sandboxes{key="counted",state="idle"}') == 3
    assert value(text, 'ramet_memory_shared_bytes{key="counted"}') > 1_000_000
    assert value(text, "ramet_pool_hits_total") + value(text, "ramet_pool_misses_total") > 0
    assert "sbx_" not in text
    for row in user.ask("GET", "/v1/sandboxes").json["sandboxes"]:
        user.ask("DELETE", f"/v1/sandboxes/{row['id']}")


def test_one_sandbox_tells_what_it_uses(caller: Caller, sandbox_id: str) -> None:
    caller.run(sandbox_id, "x = bytearray(30_000_000)")
    told = caller.ask("GET", f"/v1/sandboxes/{sandbox_id}/metrics").json
    assert told["id"] == sandbox_id
    assert told["usage"]["private_bytes"] > 20_000_000
    assert told["limits"]["memory_bytes"] > 0
    assert caller.ask("GET", f"/v1/sandboxes/sbx_{'0' * 32}/metrics").status == 404


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_page_is_served_with_its_policy(caller: Caller, path: str) -> None:
    answer = caller.ask("GET", path)
    assert answer.status == 200
    assert b"<title>Ramet</title>" in answer.body
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert caller.ask("HEAD", path).body == b""


def test_the_description_is_served_to_everybody(shared_server: Server) -> None:
    shared_server.create_key("not-a-stranger")
    stranger = Caller(shared_server.url, "rmt_wrong")
    assert stranger.ask("GET", "/v1/openapi.json").json["openapi"] == "3.1.0"
    assert stranger.ask("GET", "/v1/whoami").status == 401
