"""A streamed answer event by event, as it goes over the wire."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx

from tests.gateway.clients import CODE_TOOL, KEY, MODEL, Asking, results, said, user, weather_tool
from tests.gateway.gateways import Gateway, running_gateway
from tests.gateway.upstreams import Exchange, ScriptedUpstream, events_of, python, says, stalls

TOOLS = [CODE_TOOL, weather_tool()]
WAIT_SECONDS = 30


def events(gateway: Gateway, messages: list[Any], **more: Any) -> list[dict[str, Any]]:
    """All of them, pings too."""
    return list(each_event(gateway, messages, **more))


def each_event(gateway: Gateway, messages: list[Any], **more: Any) -> Iterator[dict[str, Any]]:
    body = {"model": MODEL, "max_tokens": 100, "messages": messages, "tools": TOOLS, "stream": True, **more}
    headers = {"x-api-key": KEY}
    with httpx.stream("POST", f"{gateway.url}/v1/messages", json=body, headers=headers, timeout=WAIT_SECONDS) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert event["type"] == name
                yield event


def owner_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in found if event["type"] != "ping"]


def test_the_events_of_a_turn_with_code(upstream: ScriptedUpstream, gateway: Gateway) -> None:
    upstream.will(says("Hm.", python("print(1)")), says("One."))
    found = events(gateway, [user("go")])
    text, use, result, last = (
        ["content_block_start", *["content_block_delta"] * pieces, "content_block_stop"]
        for pieces in (1, len(json.dumps({"code": "print(1)"})) // 7 + 2, 0, 1)
    )
    assert kinds(found) == ["message_start", *text, *use, *result, *last, "message_delta", "message_stop"]
    assert found[0]["message"]["content"] == []
    assert found[0]["message"]["stop_reason"] is None
    assert "container" not in found[0]["message"]

    starts = [event for event in found if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == [0, 1, 2, 3]
    use_start = starts[1]["content_block"]
    assert (use_start["type"], use_start["input"], use_start["caller"]) == ("server_tool_use", {}, {"type": "direct"})
    pieces = [
        event["delta"]["partial_json"] for event in found if event.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert json.loads("".join(pieces)) == {"code": "print(1)"}
    assert starts[2]["content_block"]["content"]["stdout"] == "1\n"
    delta = found[-2]
    assert delta["delta"]["stop_reason"] == "end_turn"
    assert delta["delta"]["container"]["id"].startswith("container_")
    assert delta["delta"]["container"]["expires_at"].endswith("Z")
    assert delta["usage"] == {
        "input_tokens": 20,
        "output_tokens": 10,
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
    }


def test_the_events_of_a_pause_and_of_going_on(upstream: ScriptedUpstream, gateway: Gateway, client: Any) -> None:
    code = "x = await get_weather(location='A')\ny = await get_weather(location='B')"
    upstream.will(says(python(code)))
    first = Asking(client, stream=True)([user("go")], TOOLS)
    content = [block.to_dict() for block in first.content]
    answer = results(first, "rain")
    found = events(
        gateway, [user("go"), {"role": "assistant", "content": content}, answer], container=first.container.id
    )
    assert kinds(found) == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[0]["message"]["container"]["id"] == first.container.id
    block = found[1]["content_block"]
    assert (block["type"], block["input"]) == ("tool_use", {"location": "B"})
    assert block["caller"]["tool_id"] == content[0]["id"]
    assert found[3]["delta"]["stop_reason"] == "tool_use"
    assert (found[3]["usage"]["input_tokens"], found[3]["usage"]["output_tokens"]) == (0, 0)
    assert found[3]["delta"]["container"]["id"] == first.container.id


def test_pings_while_code_runs(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """The code waits for a file, which is there once the client has seen a ping."""
    code = "import os, time\nwhile not os.path.exists(os.environ['INPUT_DIR'] + '/go'): time.sleep(0.01)"
    upstream.will(says(python(code)), says("done"))
    with running_gateway(tmp_path, upstream.url, ping_seconds=0.05) as gateway:
        called = pinged = False
        for event in each_event(gateway, [user("go")]):
            called = called or event["type"] == "content_block_stop"
            if event["type"] == "ping" and called and not pinged:
                pinged = True
                let_go(gateway)
    assert pinged


def let_go(gateway: Gateway) -> None:
    """A file comes into the container while its code runs."""
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY) as client:
        file = client.beta.files.upload(file=("go", b"", "text/plain"))
    (container,) = gateway.application.services.rooms.containers.list(owner_of(KEY))
    gateway.do(container.upload([file.id]))


def test_what_the_model_says_arrives_while_it_says_it(upstream: ScriptedUpstream, client: Any) -> None:
    """The upstream goes on only after the client has read the beginning."""
    seen = threading.Event()

    def reply(exchange: Exchange) -> None:
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": "first, second"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        exchange.begin_stream()
        for event in events_of(message):
            exchange.event(event)
            if event["type"] == "content_block_delta":
                assert seen.wait(WAIT_SECONDS)

    upstream.will(reply)
    with client.messages.stream(model=MODEL, max_tokens=10, messages=[user("hi")]) as stream:
        pieces = []
        for text in stream.text_stream:
            pieces.append(text)
            seen.set()
    assert pieces == ["first, ", "second"]


def test_a_client_that_goes_away_ends_the_sample(upstream: ScriptedUpstream, gateway: Gateway) -> None:
    gone = threading.Event()
    start = next(events_of({"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}))

    def reply(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.event(start)
        try:
            while True:
                exchange.event({"type": "ping"})
                if gone.wait(0.02):
                    return
        except ConnectionError:
            gone.set()

    upstream.will(reply)
    body = {"model": MODEL, "max_tokens": 100, "messages": [user("hi")], "stream": True}
    with httpx.stream("POST", f"{gateway.url}/v1/messages", json=body, headers={"x-api-key": KEY}) as answer:
        next(answer.iter_lines())
    assert gone.wait(WAIT_SECONDS)


def test_a_client_that_goes_away_ends_its_code(upstream: ScriptedUpstream, gateway: Gateway, client: Any) -> None:
    """The container is free again for its next request."""
    upstream.will(says(python("x = 1")), says("ok"))
    first = Asking(client, stream=False)("begin")
    upstream.will(says(python("while True: pass")), says(python("print(x)")), says("ok"))
    more = {"tools": TOOLS, "container": first.container.id}
    body = {"model": MODEL, "max_tokens": 100, "messages": [user("hi")], "stream": True, **more}
    with httpx.stream("POST", f"{gateway.url}/v1/messages", json=body, headers={"x-api-key": KEY}) as answer:
        for line in answer.iter_lines():
            if '"content_block_stop"' in line:
                break
    again = Asking(client, stream=False)("go", container=first.container.id)
    assert again.content[1].content.stdout == "1\n"


def test_a_client_that_goes_away_from_a_continuation_finds_its_answer_later(
    upstream: ScriptedUpstream, gateway: Gateway, client: Any
) -> None:
    upstream.will(says(python("w = await get_weather(location='A')\nprint(w)")))
    ask = Asking(client, stream=False)
    first = ask([user("go")], TOOLS)
    hold = threading.Event()

    def slow(exchange: Exchange) -> None:
        hold.wait(WAIT_SECONDS)
        says("done")(exchange)

    upstream.will(slow)
    history = [user("go"), said(first), results(first, "rain")]
    plain = [history[0], {"role": "assistant", "content": [b.to_dict() for b in first.content]}, history[2]]
    more = {"tools": TOOLS, "container": first.container.id}
    body = {"model": MODEL, "max_tokens": 100, "messages": plain, "stream": True, **more}
    with httpx.stream("POST", f"{gateway.url}/v1/messages", json=body, headers={"x-api-key": KEY}) as answer:
        next(answer.iter_lines())
    hold.set()
    found = ask(history, TOOLS, container=first.container.id)
    assert found.content[0].content.stdout == "rain\n"
    assert len(upstream.samples) == 2


def test_an_error_in_the_middle_is_an_event_with_the_id_of_the_request(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    message = {"model": MODEL, "content": [{"type": "text", "text": "x"}], "usage": {"output_tokens": 1}}
    begun = list(events_of({**message, "stop_reason": None, "stop_sequence": None}))[:3]
    with running_gateway(tmp_path, upstream.url, stall_seconds=0.2) as gateway:
        upstream.will(stalls(*begun))
        found = events(gateway, [user("go")])
        upstream.released.set()
    assert found[-1]["type"] == "error"
    assert found[-1]["error"]["type"] == "timeout_error"
    assert found[-1]["request_id"].startswith("req_")
