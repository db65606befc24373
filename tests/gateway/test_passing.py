"""What the upstream answers itself, what it is told of the client, and what everybody may see."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.gateway.clients import CODE_TOOL, KEY, MODEL, Asking, user, weather_tool
from tests.gateway.gateways import Gateway, running_gateway
from tests.gateway.upstreams import ScriptedUpstream, fails, python, raw, says


def test_tokens_are_counted_of_what_the_upstream_would_be_asked(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(raw(200, b'{"input_tokens": 345}', "application/json"))
    history = [
        user("go"),
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "1"}},
                {
                    "type": "code_execution_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": {
                        "type": "code_execution_result",
                        "stdout": "one",
                        "stderr": "",
                        "return_code": 0,
                        "content": [],
                    },
                },
            ],
        },
        user("on"),
    ]
    counted = client.messages.count_tokens(model=MODEL, messages=history, tools=[CODE_TOOL])
    assert counted.input_tokens == 345
    asked = upstream.asked[0]
    assert asked.path == "/v1/messages/count_tokens"
    assert asked.tool_names == ["code_execution", "bash_code_execution", "text_editor_code_execution"]
    assert asked.messages[2]["content"][0] == {"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"}
    assert not {"stream", "container", "thread"} & asked.body.keys()


def test_models_are_the_upstreams(upstream: ScriptedUpstream, client: Any) -> None:
    model = {"id": "m/1", "type": "model", "display_name": "M", "created_at": "2026-01-01T00:00:00Z"}
    listed = {"data": [model], "has_more": False, "first_id": "m/1", "last_id": "m/1"}
    upstream.will(
        raw(200, json.dumps(listed).encode(), "application/json"),
        raw(200, json.dumps(model).encode(), "application/json"),
        fails(404, "not_found_error", "no such model"),
    )
    assert [one.id for one in client.models.list(limit=5)] == ["m/1"]
    assert client.models.retrieve("m/1").id == "m/1"
    with pytest.raises(anthropic.NotFoundError, match="no such model"):
        client.models.retrieve("m2")
    assert [one.path for one in upstream.asked] == ["/v1/models?limit=5", "/v1/models/m%2F1", "/v1/models/m2"]


@pytest.mark.parametrize(
    "path", ["..%2f..%2fv1%2ffiles", "%2e%2e/files", "../files", "a/../../x", "./x", "..;/x", "a%2f%2e%2e"]
)
def test_no_path_of_a_model_leads_elsewhere(upstream: ScriptedUpstream, gateway: Gateway, path: str) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)  # it sends a path as it is
    connection.request("GET", f"/v1/models/{path}", headers={"x-api-key": KEY})
    assert connection.getresponse().status == 404
    connection.close()
    assert upstream.asked == []


def test_credentials_of_the_client_go_to_the_upstream_as_they_came(
    upstream: ScriptedUpstream, gateway: Gateway
) -> None:
    upstream.will(says("a"), says("b"))
    body = {"model": MODEL, "max_tokens": 1, "messages": [user("x")]}
    for headers in ({"x-api-key": "k1"}, {"authorization": "Bearer k2", "anthropic-version": "2026-10-21"}):
        httpx.post(f"{gateway.url}/v1/messages", json=body, headers=headers).raise_for_status()
    first, second = (one.headers for one in upstream.samples)
    assert (first["x-api-key"], first.get("authorization"), first["anthropic-version"]) == ("k1", None, "2023-06-01")
    assert (second["authorization"], second.get("x-api-key"), second["anthropic-version"]) == (
        "Bearer k2",
        None,
        "2026-10-21",
    )


def test_betas_that_concern_the_gateway_alone_are_not_passed_on(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says("a"), says("b"))
    betas = ["code-execution-2025-08-25", "interleaved-thinking-2025-05-14", "files-api-2025-04-14", "some-new-2027"]
    client.beta.messages.create(model=MODEL, max_tokens=1, messages=[user("x")], betas=betas)
    client.beta.messages.create(model=MODEL, max_tokens=1, messages=[user("x")], betas=betas[:1])
    first, second = upstream.samples
    assert first.headers["anthropic-beta"] == "interleaved-thinking-2025-05-14,some-new-2027"
    assert "anthropic-beta" not in second.headers


def test_fields_that_only_the_upstream_understands_are_passed_on(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says("a", context_management={"applied_edits": []}))
    answer = Asking(client, stream=False)(
        "x",
        tools=(),
        extra_body={"temperature": 0.3, "top_k": 4, "metadata": {"user_id": "u"}},
        extra_query={"beta": "true"},
    )
    body = upstream.samples[0].body
    assert (body["temperature"], body["top_k"], body["metadata"]) == (0.3, 4, {"user_id": "u"})
    assert answer.to_dict()["context_management"] == {"applied_edits": []}
    assert upstream.samples[0].path == "/v1/messages?beta=true"


def test_tools_of_the_clients_of_any_kind_pass_untouched(upstream: ScriptedUpstream, client: Any) -> None:
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {
            "name": "mine",
            "description": "d",
            "input_schema": {"type": "object"},
            "cache_control": {"type": "ephemeral"},
        },
    ]
    upstream.will(says("a"))
    Asking(client, stream=False)("x", tools=[*tools, CODE_TOOL])
    assert upstream.samples[0].body["tools"][:3] == tools


def test_keys_of_the_gateway(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with running_gateway(tmp_path, upstream.url, keys=("gateway-key-1", "gateway-key-2")) as gateway:
        for headers in (
            {},
            {"x-api-key": "gateway-key"},
            {"authorization": "Bearer x"},
            {"authorization": "gateway-key-1"},
        ):
            answer = httpx.get(f"{gateway.url}/v1/containers", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert httpx.get(f"{gateway.url}/metrics", headers=headers).status_code == 401
        assert httpx.get(f"{gateway.url}/healthz").json() == {"status": "ok"}
        upstream.will(says("a"), says("b"))
        body = {"model": MODEL, "max_tokens": 1, "messages": [user("x")]}
        for headers in ({"authorization": "Bearer gateway-key-1"}, {"x-api-key": "gateway-key-2"}):
            httpx.post(f"{gateway.url}/v1/messages", json=body, headers=headers).raise_for_status()
        for asked in upstream.samples:
            assert "gateway-key" not in json.dumps(asked.headers)  # they are nobody else's business


def test_without_keys_pages_in_a_browser_are_kept_out(gateway: Gateway) -> None:
    url = f"{gateway.url}/v1/containers"
    assert httpx.get(url).status_code == 200
    for headers in (
        {"origin": "https://evil.example"},
        {"host": "evil.example"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = httpx.get(url, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


def test_containers_can_be_seen_forked_and_deleted(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says(python("score = 7")), says("ok"))
    ask = Asking(client, stream=False)
    first = ask("begin")
    described = client.get(f"/v1/containers/{first.container.id}", cast_to=object)
    assert "score" in json.dumps(described)
    forked = client.post(f"/v1/containers/{first.container.id}/fork", body={"n": 2}, cast_to=object)
    ids = [child["id"] for child in forked["data"]]
    upstream.will(says(python("score += 1; print(score)")), says("ok"), says(python("print(score)")), says("ok"))
    left, right = (ask("go", container=one) for one in ids)
    assert left.content[1].content.stdout == "8\n"
    assert right.content[1].content.stdout == "7\n"


def test_metrics_tell_of_turns_cells_and_tokens(upstream: ScriptedUpstream, client: Any, gateway: Gateway) -> None:
    upstream.will(says(python("await get_weather(location='A')")), fails(400, "invalid_request_error", "x"))
    ask = Asking(client, stream=False)
    ask("go", [CODE_TOOL, weather_tool()])
    with pytest.raises(anthropic.BadRequestError):
        ask("go")
    answer = httpx.get(f"{gateway.url}/metrics", headers={"x-api-key": KEY})
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert float(lines["ramet_gateway_pending"]) >= 1
    for name in (
        'ramet_gateway_turns_total{outcome="tool_use"}',
        'ramet_gateway_turns_total{outcome="error"}',
        'ramet_gateway_samples_total{outcome="ok"}',
        'ramet_gateway_samples_total{outcome="error"}',
        "ramet_gateway_tool_calls_total",
        'ramet_gateway_upstream_tokens_total{kind="output"}',
        'ramet_gateway_requests_total{method="POST",route="/v1/messages",status="200"}',
    ):
        assert float(lines[name]) >= 1, name
    assert "Estimate of tokens" in answer.text
