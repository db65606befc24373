"""An upstream that refuses, breaks off, stalls, or sends what is none of the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.gateway.clients import KEY, MODEL, Asking, shape, texts, user
from tests.gateway.gateways import Gateway, running_gateway
from tests.gateway.upstreams import (
    ScriptedUpstream,
    events_of,
    fails,
    is_silent,
    python,
    raw,
    says,
    stalls,
    streams,
    tool_use,
)


def message(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(blocks),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


STREAM = list(events_of(message({"type": "text", "text": "Hello, world."})))


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (413, "request_too_large", anthropic.APIStatusError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.APIStatusError),
    ],
)
def test_an_error_is_passed_on_with_its_status(
    upstream: ScriptedUpstream, ask: Asking, status: int, kind: str, error: type[anthropic.APIStatusError]
) -> None:
    upstream.will(fails(status, kind, "because of this", {"retry-after": "7", "x-other": "y"}))
    with pytest.raises(error) as caught:
        ask("go")
    assert caught.value.status_code == status
    assert caught.value.type == kind
    assert caught.value.api_message == "because of this"
    assert caught.value.response.headers["retry-after"] == "7"
    assert "x-other" not in caught.value.response.headers
    assert caught.value.request_id is not None
    assert caught.value.request_id.startswith("req_")
    assert caught.value.response.json()["request_id"] == caught.value.request_id
    assert len(upstream.samples) == 1


def test_a_page_of_a_proxy_becomes_an_error_of_the_api(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(raw(502, b"<html>Bad Gateway</html>", "text/html"))
    with pytest.raises(anthropic.InternalServerError, match="answered 502: <html>Bad Gateway</html>") as caught:
        ask("go")
    assert (caught.value.status_code, caught.value.type) == (502, "api_error")


def test_errors_in_the_shape_of_other_apis_keep_their_message(upstream: ScriptedUpstream, ask: Asking) -> None:
    body = {"error": {"message": "the model does not exist", "type": "NotFoundError", "code": 404}}
    upstream.will(raw(404, json.dumps(body).encode(), "application/json"))
    with pytest.raises(anthropic.NotFoundError, match="the model does not exist") as caught:
        ask("go")
    assert caught.value.type == "not_found_error"


def test_something_that_is_not_json(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(raw(200, b"hello", "application/json"), raw(200, b'{"choices": []}', "application/json"))
    with pytest.raises(anthropic.InternalServerError, match="not JSON: hello"):
        Asking(client, stream=False)("go")
    with pytest.raises(anthropic.InternalServerError, match="an answer without content"):
        Asking(client, stream=False)("go")


@pytest.mark.parametrize(
    ("pieces", "what"),
    [
        ([b"data: {nonsense\n\n"], "not JSON"),
        ([b"hello\n\n"], "before it began"),
        ([], "before it began"),
        (STREAM[2:], "before 'message_start'"),
        ([STREAM[0], STREAM[0]], "'message_start' that cannot be"),
        ([*STREAM[:3], STREAM[2]], "'content_block_start' that cannot be"),
        ([STREAM[0], STREAM[3]], "belongs to no block"),
        ([STREAM[0], {"type": "content_block_stop", "index": 0}], "belongs to no block"),
        (STREAM[:4], "in the middle of an answer"),
    ],
)
def test_a_stream_that_is_garbage_ends_in_an_error(
    upstream: ScriptedUpstream, client: Any, pieces: list[Any], what: str
) -> None:
    upstream.will(streams(*pieces))
    with pytest.raises(anthropic.APIStatusError, match=what) as caught:
        Asking(client, stream=True)("go")
    assert caught.value.type == "api_error"


def test_a_stream_without_its_last_event_is_whole_if_nothing_is_missing(
    upstream: ScriptedUpstream, client: Any
) -> None:
    upstream.will(streams(*STREAM[:-1]))
    assert texts(Asking(client, stream=True)("go")) == "Hello, world."


def test_events_and_fields_that_nobody_knows_do_no_harm(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(
        streams(b": comment\r\n\r\n", STREAM[0], {"type": "news", "x": 1}, b"data: [DONE]\r\n\r\n", *STREAM[1:])
    )
    assert texts(Asking(client, stream=True)("go")) == "Hello, world."


def test_an_upstream_that_does_not_stream_when_asked_to(upstream: ScriptedUpstream, client: Any) -> None:
    whole = message({"type": "text", "text": "All at once."}, tool_use("clock", zone="UTC"))
    upstream.will(raw(200, json.dumps(whole).encode(), "application/json"))
    with client.messages.stream(model=MODEL, max_tokens=10, messages=[user("hi")]) as stream:
        assert "".join(stream.text_stream) == "All at once."
        answer = stream.get_final_message()
    assert answer.content[1].input == {"zone": "UTC"}


def test_an_error_inside_a_stream_is_told_with_its_kind(upstream: ScriptedUpstream, client: Any) -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    upstream.will(streams(overloaded), streams(*STREAM[:4], overloaded))
    with pytest.raises(anthropic.APIStatusError) as caught:
        Asking(client, stream=True)("go")
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
    with pytest.raises(anthropic.APIStatusError) as caught:
        Asking(client, stream=True)("go")
    assert (caught.value.status_code, caught.value.type) == (200, "overloaded_error")


@pytest.mark.deep("restarts")
def test_an_upstream_that_stalls_is_given_up(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with running_gateway(tmp_path, upstream.url, stall_seconds=0.3, answer_seconds=0.3) as gateway:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            upstream.will(is_silent, is_silent, stalls(*STREAM[:4]))
            for stream in (False, True):
                with pytest.raises(anthropic.InternalServerError, match="sent nothing for 0.3 seconds") as caught:
                    Asking(client, stream=stream)("go")
                assert (caught.value.status_code, caught.value.type) == (504, "timeout_error")
            with pytest.raises(anthropic.APIStatusError, match="sent nothing for 0.3 seconds"):
                Asking(client, stream=True)("go")
            upstream.released.set()


def test_an_upstream_that_is_not_there(tmp_path: Path) -> None:
    with running_gateway(tmp_path, "http://127.0.0.1:9") as gateway:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            with pytest.raises(anthropic.InternalServerError, match="127.0.0.1:9 cannot be reached") as caught:
                Asking(client, stream=False)("go")
    assert caught.value.status_code == 502


def test_in_the_middle_of_a_turn_the_gateway_tries_again_itself(upstream: ScriptedUpstream, ask: Asking) -> None:
    limited = fails(429, "rate_limit_error", "slow down", {"retry-after-ms": "1"})
    upstream.will(says(python("print(1)")), limited, raw(503, b"", "text/plain"), says("done"))
    assert texts(ask("go")) == "done"


def test_a_tool_that_nobody_has_is_told_to_the_model_and_not_to_the_client(
    upstream: ScriptedUpstream, ask: Asking
) -> None:
    upstream.will(says("Let me search.", tool_use("search", query="x")), says("Without it, then."))
    answer = ask("go")
    assert shape(answer) == ["text", "text"]
    assert texts(answer) == "Let me search.Without it, then."
    told = upstream.samples[1].messages[-1]
    assert told["role"] == "user"
    assert told["content"][0]["text"].startswith("[There is no tool named search. The tools are: code_execution, ")


def test_an_unknown_tool_beside_code_does_not_keep_it_from_running(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(tool_use("search"), python("print(5)")), says("done"))
    answer = ask("go")
    assert shape(answer) == ["server_tool_use", "code_execution_tool_result", "text"]
    assert [block["type"] for block in upstream.samples[1].messages[-1]["content"]] == ["tool_result", "text"]


def test_a_model_that_calls_nothing_else_is_stopped(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(*[says(tool_use("search"))] * 3)
    with pytest.raises(anthropic.APIStatusError, match="keeps calling tools that do not exist: search"):
        ask("go")


def test_input_that_is_no_object_is_an_error_of_the_tool(upstream: ScriptedUpstream, ask: Asking) -> None:
    broken = {**python(""), "input": {"wrong": 1}}
    upstream.will(says(broken), says("sorry"))
    answer = ask("go")
    assert answer.content[1].to_dict()["content"] == {
        "type": "code_execution_tool_result_error",
        "error_code": "invalid_tool_input",
    }
    assert upstream.samples[1].messages[-1]["content"][0]["is_error"] is True


def test_server_tools_of_the_upstream_pass_through(upstream: ScriptedUpstream, ask: Asking) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    use = {"type": "server_tool_use", "id": "srvtoolu_w", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_w", "content": []}
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
    }
    upstream.will(says(use, found, python("print(1)"), usage=usage), says("done"))
    answer = ask("go", tools=[{"type": "code_execution_20260120", "name": "code_execution"}, search])
    assert shape(answer)[:3] == ["server_tool_use", "web_search_tool_result", "server_tool_use"]
    assert answer.content[0].to_dict()["name"] == "web_search"
    assert upstream.samples[0].body["tools"][-1] == search
    assert [block["type"] for block in upstream.samples[1].messages[1]["content"]] == [
        "server_tool_use",
        "web_search_tool_result",
        "tool_use",
    ]
    assert answer.usage.server_tool_use is not None
    assert answer.usage.server_tool_use.web_search_requests == 1


def test_an_upstream_without_such_server_tools_is_named_in_the_refusal(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(fails(400, "invalid_request_error", "tools.0: unknown type"))
    with pytest.raises(anthropic.BadRequestError, match="only the upstream can carry out: web_search_20250305"):
        ask("go", tools=[{"type": "web_search_20250305", "name": "web_search"}])


def test_the_key_of_the_gateway_is_in_no_error(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with running_gateway(tmp_path, upstream.url, upstream_key="sk-upstream-secret") as gateway:
        upstream.will(fails(401, "authentication_error", "wrong key: sk-upstream-secret"))
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            with pytest.raises(
                anthropic.AuthenticationError, match=r"wrong key: \*\*\* \(the upstream says so"
            ) as caught:
                Asking(client, stream=False)("go")
        assert "sk-upstream-secret" not in str(caught.value)
        assert upstream.samples[0].headers["authorization"] == "Bearer sk-upstream-secret"
        assert KEY not in json.dumps(upstream.samples[0].headers)


def test_nothing_of_a_request_is_logged(upstream: ScriptedUpstream, ask: Asking, gateway: Gateway) -> None:
    upstream.will(says(python("print('printed-secret')")), says("said-secret"), fails(400, "x_error", "error-secret"))
    ask("asked-secret")
    with pytest.raises(anthropic.BadRequestError):
        ask("asked-secret")
    assert '"route": "/v1/messages"' in gateway.logged
    for secret in (KEY, "asked-secret", "printed-secret", "said-secret", "error-secret", "print("):
        assert secret not in gateway.logged
