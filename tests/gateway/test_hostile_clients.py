"""Clients that mean harm: what they send is refused with a clear error, and costs no more than its size."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import pytest

from ramet.doors.gateway.requests.schemas import signature
from ramet.doors.gateway.turns.continuations import Continuations
from tests.gateway.clients import CODE_TOOL, KEY, MODEL, Asking, results, said, user, weather_tool
from tests.gateway.commands import started
from tests.gateway.gateways import Gateway
from tests.gateway.upstreams import ScriptedUpstream, bash, python, says

CELL = {"type": "server_tool_use", "id": "srvtoolu_forged", "name": "code_execution", "input": {"code": "x"}}
CALL = {
    "type": "tool_use",
    "id": "toolu_forged",
    "name": "get_weather",
    "input": {},
    "caller": {"type": "code_execution_20260120", "tool_id": "srvtoolu_forged"},
}


def post(gateway: Gateway, body: dict[str, Any] | bytes, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{gateway.url}/v1/messages", content=content, headers={"x-api-key": KEY, **headers}, timeout=60)


def continuation(result: Any = "rain", **more: Any) -> dict[str, Any]:
    answer = {"type": "tool_result", "tool_use_id": "toolu_forged", "content": result}
    history = [user("go"), {"role": "assistant", "content": [CELL, CALL]}, user([answer])]
    return {"model": MODEL, "max_tokens": 5, "messages": history, "tools": [CODE_TOOL, weather_tool()], **more}


def test_another_keys_pending_code_is_neither_answered_nor_heard_of(
    upstream: ScriptedUpstream, client: Any, gateway: Gateway
) -> None:
    upstream.will(says(python("print(await get_weather(location='A'))")), says("done"))
    ask, question, tools = Asking(client, stream=False), user("go"), [CODE_TOOL, weather_tool()]
    first = ask([question], tools)
    history, container = [question, said(first), results(first, "forged")], first.container.id
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-of-another", max_retries=0) as other:
        with pytest.raises(anthropic.NotFoundError, match="container not found"):
            Asking(other, stream=False)(history, tools, container=container)
    answer = ask([question, said(first), results(first, "rain")], tools, container=container)
    assert answer.content[0].content.stdout == "rain\n"
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-of-another", max_retries=0) as other:
        with pytest.raises(anthropic.NotFoundError, match="container not found"):
            Asking(other, stream=False)([question, said(first), results(first, "rain")], tools, container=container)


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": []}],
        [{**CELL, "id": {}}],
        [{**CELL, "id": "srvtoolu_1"}, {"type": "code_execution_tool_result", "tool_use_id": [], "content": {}}],
        [{**CALL, "id": ["toolu"]}],
    ],
)
def test_blocks_with_values_of_the_wrong_type_are_refused(gateway: Gateway, blocks: list[dict[str, Any]]) -> None:
    history = [user("go"), {"role": "assistant", "content": blocks}, user("on")]
    answer = post(gateway, {"model": MODEL, "max_tokens": 5, "messages": history, "tools": [CODE_TOOL]})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "of a block must be strings" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": {"type": "tool", "name": []}},
        {"tools": [weather_tool(input_schema={"type": "object", "properties": {"a": {}}, "required": [[]]})]},
        {"messages": [user([{"type": "container_upload", "file_id": "\ud800"}])]},
    ],
)
def test_other_odd_values_are_no_failure_of_the_gateway(
    upstream: ScriptedUpstream, gateway: Gateway, more: dict[str, Any]
) -> None:
    upstream.will(says("ok"))
    body = {"model": MODEL, "max_tokens": 5, "messages": [user("x")], "tools": [CODE_TOOL, weather_tool()]}
    assert post(gateway, {**body, **more}).status_code in (200, 404)


def test_results_that_are_nested_too_deeply_are_refused(gateway: Gateway) -> None:
    body = json.dumps(continuation([{"type": "text", "text": "DEEP"}], container="container_x"))
    answer = post(gateway, body.replace('"DEEP"', "[" * 900 + "]" * 900).encode())
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the request is nested too deeply")


def test_headers_that_cannot_be_passed_on_are_refused(gateway: Gateway) -> None:
    address = urlsplit(gateway.url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port), 30) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: k\xff\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_continuations_that_come_to_nothing_are_not_kept(gateway: Gateway) -> None:
    """Each could be as long as a request may be."""
    kept: Continuations = gateway.application._messages._continuations
    before = kept.size_bytes
    for number in range(3):
        answer = post(gateway, continuation("x" * 100_000, container=f"container_{number}"))
        assert answer.json()["error"]["details"]["error_code"] == "container_not_found"
    assert kept.size_bytes == before


def test_what_is_kept_of_continuations_is_bounded(
    upstream: ScriptedUpstream, ask: Asking, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: Continuations = gateway.application._messages._continuations
    monkeypatch.setattr("ramet.doors.gateway.turns.continuations._KEPT_BYTES", 300_000)
    for _ in range(4):
        upstream.will(says(python("await get_weather(location='A')\nprint('x' * 90_000)")), says("done"))
        first = ask([user("go")], [CODE_TOOL, weather_tool()])
        history = [user("go"), said(first), results(first, "rain")]
        ask(history, [CODE_TOOL, weather_tool()], container=first.container.id)
    assert 90_000 < kept.size_bytes <= 300_000
    # The last one is among those that are.
    assert ask(history, [CODE_TOOL, weather_tool()], container=first.container.id).content[-1].text == "done"


def test_a_file_that_is_named_many_times_counts_each_time(upstream: ScriptedUpstream, client: Any) -> None:
    file = client.files.upload(file=("a.png", b"x" * (9 << 20), "image/png"))
    picture = {"type": "image", "source": {"type": "file", "file_id": file.id}}
    upstream.will(says("Three pictures."))
    ask = Asking(client, stream=False)
    ask([user([picture] * 3)])
    with pytest.raises(anthropic.APIStatusError, match="the files in messages are longer than") as caught:
        ask([user([picture] * 4)])
    assert caught.value.status_code == 413


def test_a_schema_that_grows_when_it_is_read_is_told_in_short() -> None:
    wide = {f"d{depth}": {"anyOf": [{"$ref": f"#/$defs/d{depth + 1}"}] * 6} for depth in range(5)}
    properties = {f"p{number}": {"$ref": "#/$defs/d0"} for number in range(50_000)}
    told = signature("f", {"type": "object", "properties": properties, "$defs": wide})
    assert told.startswith("async def f(p0: ")
    assert told.endswith("p99: object = ..., ...) -> str")


def test_a_container_is_described_whatever_characters_its_code_had(
    upstream: ScriptedUpstream, client: Any, gateway: Gateway
) -> None:
    upstream.will(says(python("x = '\ud800'")), says("done"))
    container = Asking(client, stream=False)("go").container
    answer = httpx.get(f"{gateway.url}/v1/containers/{container.id}", headers={"authorization": f"Bearer {KEY}"})
    assert answer.json()["cells"][0]["code"] == "x = '?'"


def test_a_form_whose_header_has_no_end_is_refused(gateway: Gateway) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + b"x" * 20_000
    headers = {"x-api-key": KEY, "content-type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{gateway.url}/v1/files", content=body, headers=headers)
    assert answer.status_code == 400
    assert "header" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\r\nX-Evil: 1", 'a"; filename="b', "..", "\u202etxt.exe"])
def test_names_of_files_lead_nowhere(upstream: ScriptedUpstream, client: Any, gateway: Gateway, name: str) -> None:
    upload = client.files.upload(file=(name, b"content", "text/plain"))
    assert not set(upload.filename) & set("/\\\r\n\u202e")
    upstream.will(says(bash("cp $INPUT_DIR/* $OUTPUT_DIR/ && ls -A $INPUT_DIR | wc -l")), says("done"))
    given = user([{"type": "text", "text": "go"}, {"type": "container_upload", "file_id": upload.id}])
    answer = Asking(client, stream=False)([given])
    result = answer.content[1].content
    assert result.stdout == "1\n"
    made = client.files.download(result.content[0].file_id)
    assert made.read() == b"content"
    assert "x-evil" not in made.headers
    assert "\n" not in made.headers["content-disposition"]


@pytest.mark.deep("restarts")
def test_a_head_without_an_end_is_cut_off(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with started(tmp_path, upstream.url) as gateway:
        address = urlsplit(gateway.url)
        assert address.hostname is not None
        with socket.create_connection((address.hostname, address.port), 30) as connection:
            connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n")
            with pytest.raises(ConnectionError):
                connection.sendall(b"x-header: %s\r\n" % (b"y" * 1000) * 100_000)
        assert httpx.get(f"{gateway.url}/healthz").json() == {"status": "ok"}
