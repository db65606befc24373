"""Requests that cannot be answered: each is told what is wrong with it, before the model is asked."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.gateway.clients import CODE_TOOL, MODEL, Asking, results, said, user, weather_tool
from tests.gateway.upstreams import ScriptedUpstream, python, says, tool_use

RECURSIVE = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/node"}},
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}

DEEP = (
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "x", '
    b'"allowed_callers": ["code_execution_20260120"], "input_schema": {"properties": '
    + b'{"x":' * 900
    + b"{}"
    + b"}" * 900
    + b"}}]}"
)


@pytest.mark.parametrize(
    ("tools", "what"),
    [
        (
            [{"type": "code_execution_20990101", "name": "code_execution"}],
            "not a version that this gateway has; it has",
        ),
        ([CODE_TOOL, CODE_TOOL], "declared twice"),
        ([{**CODE_TOOL, "name": "python"}], "must be 'code_execution'"),
        ([{"type": CODE_TOOL["type"]}], r"tools\.0\.name: Field required"),
        ([CODE_TOOL, {"name": "bash_code_execution", "input_schema": {"type": "object"}}], "a name of code execution"),
        ([CODE_TOOL, weather_tool(strict=True)], "strict: true cannot be used with programmatic tool calling"),
        ([CODE_TOOL, weather_tool(input_schema=RECURSIVE)], r"input_schema: Circular \$ref detected"),
        ([CODE_TOOL, weather_tool(allowed_callers=[])], "must be a list that is not empty"),
        ([CODE_TOOL, weather_tool(allowed_callers=["somebody"])], "neither 'direct' nor a version of code execution"),
        ([CODE_TOOL, weather_tool(name="get weather")], "a name of 1 to 64 letters"),
        ([CODE_TOOL, weather_tool(input_schema={"type": "string"})], "needs the schema of an object"),
        ([CODE_TOOL, weather_tool(name="a-b"), weather_tool(name="a_b")], "the same name in Python"),
        (
            [
                CODE_TOOL,
                {"type": "web_fetch_20260209", "name": "web_fetch", "allowed_callers": ["code_execution_20260120"]},
            ],
            "code cannot call server tools of the upstream",
        ),
    ],
)
def test_tools_that_cannot_be(upstream: ScriptedUpstream, client: Any, tools: Any, what: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=what) as caught:
        Asking(client, stream=False)("go", tools)
    assert caught.value.type == "invalid_request_error"
    assert upstream.asked == []


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        ({"type": "tool", "name": "get_weather"}, "can only be called from code, so it cannot be forced"),
        ({"type": "auto", "disable_parallel_tool_use": True}, "disable_parallel_tool_use cannot be used"),
    ],
)
def test_choices_that_do_not_go_with_calls_from_code(client: Any, choice: Any, what: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=what):
        Asking(client, stream=False)("go", [CODE_TOOL, weather_tool()], tool_choice=choice)


@pytest.mark.parametrize("stream", [False, True])
def test_a_container_that_never_was_is_a_typed_404(client: Any, stream: bool) -> None:
    with pytest.raises(anthropic.NotFoundError, match="container not found: container_nothing") as caught:
        Asking(client, stream=stream)("go", container="container_nothing")
    assert (caught.value.type, caught.value.error_code) == ("not_found_error", "container_not_found")


def test_a_container_that_is_gone_is_a_typed_404_that_says_so(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says(python("1")), says("ok"))
    ask = Asking(client, stream=False)
    first = ask("go")
    deleted = client.delete(f"/v1/containers/{first.container.id}", cast_to=object)
    assert deleted == {"id": first.container.id, "type": "container_deleted"}
    with pytest.raises(anthropic.NotFoundError, match="has expired: it was deleted") as caught:
        ask("go on", container=first.container.id)
    assert caught.value.error_code == "container_expired"


def test_a_container_of_another_owner_does_not_exist(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says(python("1")), says("ok"))
    first = Asking(client, stream=False)("go")
    with anthropic.Anthropic(base_url=str(client.base_url), api_key="sk-of-another", max_retries=0) as other:
        with pytest.raises(anthropic.NotFoundError):
            Asking(other, stream=False)("go", container=first.container.id)


def test_results_for_code_need_its_container(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says(python("await get_weather(location='A')")))
    ask, question, tools = Asking(client, stream=False), user("go"), [CODE_TOOL, weather_tool()]
    first = ask([question], tools)
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask([question, said(first), results(first, "rain")], tools)
    assert caught.value.api_message == (
        "container_id is required when there are pending tool uses generated by code execution with tools."
    )


def test_calls_of_code_must_be_answered_at_once_all_and_alone(upstream: ScriptedUpstream, client: Any) -> None:
    code = "import asyncio\nawait asyncio.gather(get_weather(location='A'), get_weather(location='B'))"
    upstream.will(says(python(code)))
    ask, question, tools = Asking(client, stream=False), user("go"), [CODE_TOOL, weather_tool()]
    first = ask([question], tools)
    answers = results(first, "rain", "snow")
    ids = [block["tool_use_id"] for block in answers["content"]]
    missing = f"messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: {ids[1]}"
    incomplete = user(answers["content"][:1])
    with pytest.raises(anthropic.BadRequestError, match=missing):
        ask([question, said(first), incomplete], tools, container=first.container.id)
    with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks immediately after"):
        ask([question, said(first), user("never mind")], tools, container=first.container.id)
    chatty = user([*answers["content"], {"type": "text", "text": "here you are"}])
    with pytest.raises(anthropic.BadRequestError, match="must be sent alone"):
        ask([question, said(first), chatty], tools, container=first.container.id)


def test_a_picture_in_a_result_for_code_is_refused_and_the_code_waits_on(
    upstream: ScriptedUpstream, client: Any
) -> None:
    upstream.will(says(python("print(await get_weather(location='A'))")), says("done"))
    ask, question, tools = Asking(client, stream=False), user("go"), [CODE_TOOL, weather_tool()]
    first = ask([question], tools)
    (answer,) = results(first, "rain")["content"]
    for kind in ("image", "document"):
        shown = {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}
        seen = {**answer, "content": [{"type": "text", "text": "rain"}, shown]}
        refused = (
            f"{answer['tool_use_id']} holds a block of type `{kind}`: results of tools that code has called must be"
        )
        with pytest.raises(anthropic.BadRequestError, match=refused):
            ask([question, said(first), user([seen])], tools, container=first.container.id)
    second = ask([question, said(first), user([answer])], tools, container=first.container.id)
    assert second.content[0].content.stdout == "rain\n"


def test_a_result_that_nobody_asked_for_is_refused(upstream: ScriptedUpstream, client: Any) -> None:
    clock: Any = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
    upstream.will(says(tool_use("clock")), says("It is noon."))
    ask, question, tools = Asking(client, stream=False), user("What time is it?"), [CODE_TOOL, clock]
    first = ask([question], tools)
    answer = results(first, "noon")
    foreign = {"type": "tool_result", "tool_use_id": "toolu_made_up", "content": "x"}
    expected = r"messages\.2\.content\.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_made_up\. Each"
    with pytest.raises(anthropic.BadRequestError, match=expected):
        ask([question, said(first), user([*answer["content"], foreign])], tools)
    second = ask([question, said(first), answer], tools)
    # Nor may one be answered a second time, after the model has gone on.
    again = [question, said(first), answer, said(second), answer]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.4\.content\.0: unexpected `tool_use_id`"):
        ask(again, tools)
    assert len(upstream.samples) == 2


def test_results_without_code_execution_are_the_upstreams_business(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says("ok"))
    foreign = {"type": "tool_result", "tool_use_id": "toolu_made_up", "content": "x"}
    Asking(client, stream=False)([user([foreign])], tools=())
    assert upstream.samples[0].messages == [user([foreign])]


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        (b"{", 400, "not JSON"),
        (b"[1]", 400, "must be a JSON object"),
        (b'{"max_tokens": 5, "messages": []}', 400, "model: Field required"),
        (b'{"model": "m", "messages": 5}', 400, "messages: Field required"),
        (b'{"model": "m", "messages": []}', 400, "at least one message"),
        (b'{"model": "m", "messages": [{"content": "x"}]}', 400, "messages.0: must be an object with a role"),
        (b'{"model": "m", "messages": [{"role": "user"}]}', 400, "messages.0.content: must be"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": 5}', 400, "tools: must be a list"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "container": 5}', 400, "container: must be"),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "container": {"skills": [{}]}}',
            400,
            "this gateway has no skills",
        ),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "thread": {}}', 400, "thread.type: must be"),
        (b"[" * 100_000, 400, "not JSON"),
        (DEEP, 400, "nested too deeply"),
        (b" " * (33 << 20), 413, "longer than"),
    ],
)
def test_bodies_that_are_no_request(client: Any, body: bytes, status: int, what: str) -> None:
    with pytest.raises(anthropic.APIStatusError, match=what) as caught:
        client.post("/v1/messages", content=body, cast_to=object)
    assert caught.value.status_code == status


def test_other_paths_are_not_there(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="this gateway has no /v1/messages/batches; it has /v1/messages"):
        client.messages.batches.list()
    with pytest.raises(anthropic.APIStatusError, match="GET is not allowed here") as caught:
        client.get("/v1/messages", cast_to=object)
    assert caught.value.status_code == 405
    assert caught.value.response.headers["allow"] == "POST"


def test_another_conversation_in_a_container_whose_code_waits_is_told_so(
    upstream: ScriptedUpstream, client: Any
) -> None:
    upstream.will(says(python("await get_weather(location='A')")), says(python("print(1)")), says("It is busy."))
    ask = Asking(client, stream=False)
    first = ask("weather?", [CODE_TOOL, weather_tool()])
    other = ask("compute", container=first.container.id)
    assert other.content[1].to_dict()["content"]["error_code"] == "too_many_requests"
    assert "waits for the results" in upstream.samples[2].messages[-1]["content"][0]["content"]


def test_count_tokens_with_a_model_named_wrongly_is_refused(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="messages: at least one"):
        client.messages.count_tokens(model=MODEL, messages=[])
