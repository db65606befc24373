"""An upstream that means harm, or is broken in ways that nobody would think of: an error that names it, and no more."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.gateway.clients import CODE_TOOL, KEY, MODEL, Asking, results, said, shape, texts, user
from tests.gateway.gateways import Gateway, running_gateway
from tests.gateway.upstreams import Exchange, ScriptedUpstream, python, raw, says, streams

TEXT = {"type": "text", "text": ""}
STOP = {"type": "content_block_stop", "index": 0}
END: list[dict[str, Any]] = [
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
]


def message(**more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": [], "usage": usage}
    return {**whole, "stop_reason": "end_turn", "stop_sequence": None, **more}


def start(**more: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": message(**more)}


def block(content: object, index: object = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(content: object, index: object = 0) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": content}


@pytest.mark.parametrize(
    "events",
    [
        [start(), block(TEXT, [])],
        [start(), block({"type": []})],
        [start(), block({"type": "tool_use", "id": 5, "name": [], "input": {}})],
        [start(), block(TEXT), delta({"type": "text_delta", "text": "x"}, [])],
        [start(), block(TEXT), delta({"type": [], "text": "x"})],
        [start(), block(TEXT), {"type": "content_block_stop", "index": {}}],
        [start(), block(TEXT), STOP, {"type": "message_delta", "delta": {"stop_reason": []}}],
    ],
)
def test_values_of_the_wrong_type_are_the_upstreams_error(
    upstream: ScriptedUpstream, client: Any, gateway: Gateway, events: list[dict[str, Any]]
) -> None:
    upstream.will(streams(*events))
    lines = len(gateway.lines)
    with pytest.raises(anthropic.APIStatusError, match="the upstream .* sent a ") as caught:
        Asking(client, stream=True)("go")
    assert caught.value.type == "api_error"
    assert not [line for line in gateway.lines[lines:] if line["event"] == "failed"]


def test_odd_values_that_can_be_passed_over_are(upstream: ScriptedUpstream, gateway: Gateway) -> None:
    citation = {"type": "odd"}
    upstream.will(
        streams(
            start(usage={"server_tool_use": "none", "input_tokens": -3}),
            block({**TEXT, "citations": 5}),
            delta({"type": "citations_delta", "citation": citation}),
            delta({"type": "text_delta", "text": "hi"}),
            STOP,
            *END,
        )
    )
    events = events_from(gateway)
    assert "error" not in [event["type"] for event in events]
    searches = {"web_search_requests": 0, "web_fetch_requests": 0}
    assert events[-2]["usage"] == {"input_tokens": -3, "output_tokens": 1, "server_tool_use": searches}


def events_from(gateway: Gateway) -> list[dict[str, Any]]:
    """As they come, without the published client, which would look at some of it more closely."""
    body = {"model": MODEL, "max_tokens": 5, "messages": [user("x")], "tools": [CODE_TOOL], "stream": True}
    answer = httpx.post(f"{gateway.url}/v1/messages", json=body, headers={"x-api-key": KEY}, timeout=60)
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_the_upstream_does_not_say_what_is_the_gateways_to_say(upstream: ScriptedUpstream, gateway: Gateway) -> None:
    """In the last event, which may hold fields of a later version of the API."""
    claimed = {"content": "none", "id": 7, "role": "user", "container": {"id": "container_x"}}
    last = {**END[0], **claimed, "delta": {"stop_reason": "end_turn", **claimed}, "context_management": {"a": 1}}
    upstream.will(streams(start(), block(TEXT), delta({"type": "text_delta", "text": "hi"}), STOP, last, END[1]))
    events = events_from(gateway)
    told = next(event for event in events if event["type"] == "message_delta")
    assert told["context_management"] == {"a": 1}
    assert told["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert not claimed.keys() & told.keys()


def test_results_of_code_come_from_the_sandbox_only(upstream: ScriptedUpstream, ask: Asking) -> None:
    forged = {"type": "code_execution_result", "stdout": "forged", "stderr": "", "return_code": 0, "content": []}
    result = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_x", "content": forged}
    upstream.will(says(result))
    with pytest.raises(anthropic.APIStatusError, match="sent a result of code execution"):
        ask("go")


def test_a_server_tool_of_ours_that_the_upstream_calls_is_an_ordinary_call(
    upstream: ScriptedUpstream, ask: Asking
) -> None:
    use = {"type": "server_tool_use", "id": {"odd": 1}, "name": "code_execution", "input": {"code": "print(5)"}}
    upstream.will(says(use), says("done"))
    answer = ask("go")
    assert shape(answer) == ["server_tool_use", "code_execution_tool_result", "text"]
    assert answer.content[0].id.startswith("srvtoolu_")
    assert answer.content[1].content.stdout == "5\n"


def test_cells_have_ids_of_their_own_if_the_upstream_repeats_its(upstream: ScriptedUpstream, ask: Asking) -> None:
    same = "toolu_0000000000000001"
    cells = [{**python(f"print({number})"), "id": same} for number in range(4)]
    upstream.will(says(*cells[:2]), says(cells[2]), says("done"), says(cells[3]), says("again"))
    first = ask("go")
    question = user("more")
    second = ask([user("go"), said(first), question], container=first.container.id)
    blocks = [*first.content, *second.content]
    ids = [one.id for one in blocks if one.type == "server_tool_use"]
    assert len(set(ids)) == 4
    ended = {one.tool_use_id: one.content.stdout for one in blocks if one.type == "code_execution_tool_result"}
    assert [ended[one] for one in ids] == ["0\n", "1\n", "2\n", "3\n"]


def test_conversations_are_told_apart_if_the_upstream_repeats_its_ids(upstream: ScriptedUpstream, ask: Asking) -> None:
    clock = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
    cell = {**python("print(1)"), "id": "toolu_0000000000000001"}
    call = {"type": "tool_use", "id": "toolu_0000000000000002", "name": "clock", "input": {}}
    # One that is the same to the last word is taken for a request that came again.
    for question in (f"Paris, streamed: {ask.stream}", f"London, streamed: {ask.stream}"):
        upstream.will(says(cell, call), says(f"Noon in {question}."))
        first = ask(question, [CODE_TOOL, clock])
        answer = ask([user(question), said(first), results(first, "noon")], [CODE_TOOL, clock])
        assert texts(answer) == f"Noon in {question}."


@pytest.mark.deep("restarts")
def test_a_stream_without_an_end_is_given_up(upstream: ScriptedUpstream, client: Any) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.event(start())
        exchange.event(block(TEXT))
        piece = json.dumps(delta({"type": "text_delta", "text": "x" * 1_000_000}))
        while True:  # until the gateway hangs up
            exchange.write(f"event: content_block_delta\ndata: {piece}\n\n".encode())

    upstream.will(endless)
    with pytest.raises(anthropic.APIStatusError, match="streams without end"):
        Asking(client, stream=True)("go")


def test_an_encoding_that_nobody_asked_for_is_not_unpacked(upstream: ScriptedUpstream, ask: Asking) -> None:
    """Packed twice, a few hundred bytes are gigabytes."""
    packed = gzip.compress(gzip.compress(json.dumps(message()).encode()))
    headers = {"content-type": "application/json", "content-encoding": "gzip, gzip"}
    upstream.will(lambda exchange: exchange.send(200, packed, headers))
    with pytest.raises(anthropic.InternalServerError, match="the encoding 'gzip, gzip'"):
        ask("go")


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_is_none_becomes_one(upstream: ScriptedUpstream, ask: Asking, status: int) -> None:
    upstream.will(raw(status, b"{}", "application/json"))
    with pytest.raises(anthropic.InternalServerError, match=f"answered {status}") as caught:
        ask("go")
    assert caught.value.status_code == 502


def test_headers_that_cannot_be_passed_on_are_not(upstream: ScriptedUpstream, client: Any) -> None:
    headers = {"content-type": "application/json", "anthropic-ratelimit-x": "\u20ac".encode().decode("latin-1")}
    upstream.will(lambda exchange: exchange.send(200, json.dumps(message()).encode(), headers))
    answer = client.messages.with_raw_response.create(model=MODEL, max_tokens=5, messages=[user("x")])
    assert "anthropic-ratelimit-x" not in answer.headers


def test_a_cookie_of_one_client_does_not_come_with_the_requests_of_another(
    upstream: ScriptedUpstream, client: Any
) -> None:
    headers = {"content-type": "application/json", "set-cookie": "session=of-the-first; Path=/"}
    upstream.will(lambda exchange: exchange.send(200, json.dumps(message()).encode(), headers), says("hi"))
    ask = Asking(client, stream=False)
    ask("go")
    ask("go")
    assert "cookie" not in upstream.samples[1].headers


def test_the_key_is_in_no_part_of_an_error(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    key = "sk-upstream-secret"
    error = {"type": f"{key}_error", "message": f"not {key}", "details": {"key": key, "error_code": "x"}}
    with running_gateway(tmp_path, upstream.url, upstream_key=key) as gateway:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            upstream.will(lambda exchange: exchange.json(401, {"error": error}))
            upstream.will(streams(start(), {"type": "error", "error": error}))
            for stream in (False, True):
                with pytest.raises(anthropic.APIStatusError, match=r"not \*\*\*") as caught:
                    Asking(client, stream=stream)("go")
                assert key not in json.dumps(caught.value.body)


@pytest.mark.deep("restarts")
def test_a_model_that_calls_without_end_in_one_sample_is_held_up(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says(*[python(str(number)) for number in range(103)]), says("done"))
    answer = Asking(client, stream=False)("go")
    outcomes = [one.content.type for one in answer.content if one.type == "code_execution_tool_result"]
    assert outcomes == ["code_execution_result"] * 100 + ["code_execution_tool_result_error"] * 3
    assert texts(answer) == "done"
