"""The published client's tool runner, which keeps its conversation in a thread at the server."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic import beta_async_tool, beta_tool

from tests.gateway.clients import CODE_TOOL, KEY, MODEL, user
from tests.gateway.gateways import Gateway
from tests.gateway.upstreams import ScriptedUpstream, python, says, tool_use

CODE = """\
import asyncio
a, b = await asyncio.gather(get_weather(location='A'), get_weather(location='B'))
c = await get_weather(location='C')
print(a, b, c)
"""


@beta_tool
def get_weather(location: str) -> str:
    """The weather at a place.

    Args:
        location: The place.
    """
    return f"rain in {location}"


def tools() -> list[Any]:
    return [CODE_TOOL, get_weather_for_code()]


def get_weather_for_code() -> Any:
    return for_code(beta_tool(get_weather.func))


def for_code(tool: Any) -> Any:
    """The decorators of the client cannot say who may call a tool."""
    definition = {**tool.to_dict(), "allowed_callers": ["code_execution_20260120"]}
    tool.to_dict = lambda: definition
    return tool


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_runner_answers_calls_that_code_makes(upstream: ScriptedUpstream, client: Any, stream: bool) -> None:
    upstream.will(says("I look.", python(CODE)), says("Rain everywhere."))
    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=1000,
        messages=[user("How is the weather?")],
        tools=tools(),
        stream=stream,
        system="Be brief.",
    )
    final = runner.until_done()
    assert [block.type for block in final.content] == ["code_execution_tool_result", "text"]
    assert final.content[0].content.stdout == "rain in A rain in B rain in C\n"
    assert final.stop_reason == "end_turn"
    # Threads are the gateway's own: the upstream is asked the ordinary way, with everything.
    for asked in upstream.samples:
        assert "thread" not in asked.body
        assert asked.body["system"] == "Be brief."
        assert "message-threads" not in asked.headers.get("anthropic-beta", "")
    assert len(upstream.samples[1].messages) == 3


def test_a_tool_runner_with_an_ordinary_tool(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says(tool_use("get_weather", location="A")), says(python("print(1)")), says("Rain."))
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=1000, messages=[user("weather?")], tools=[CODE_TOOL, get_weather]
    )
    assert runner.until_done().content[-1].text == "Rain."
    assert upstream.samples[1].messages[-1]["content"][0]["content"] == "rain in A"


def test_a_paused_turn_is_resumed_in_its_thread(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(*[says(python(f"x{n} = {n}")) for n in range(10)], says(python("print(x9)")), says("done"))
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=1000, messages=[user("count")], tools=[CODE_TOOL, get_weather]
    )
    final = runner.until_done()
    assert final.content[1].content.stdout == "9\n"


def test_an_asynchronous_tool_runner(upstream: ScriptedUpstream, gateway: Gateway) -> None:
    @beta_async_tool
    async def get_weather(location: str) -> str:
        """The weather."""
        return f"fog in {location}"

    async def run() -> Any:
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEY) as client:
            runner = client.beta.messages.tool_runner(
                model=MODEL, max_tokens=1000, messages=[user("weather?")], tools=[CODE_TOOL, for_code(get_weather)]
            )
            return await runner.until_done()

    upstream.will(says(python(CODE)), says("Fog."))
    assert asyncio.run(run()).content[0].content.stdout == "fog in A fog in B fog in C\n"


def test_a_thread_sends_only_what_is_new(upstream: ScriptedUpstream, client: Any) -> None:
    thread = client.beta.messages.thread(model=MODEL, max_tokens=100, system="Be brief.", tools=[CODE_TOOL])
    upstream.will(says("One."), says("Two."), says("Three."))
    for text in ("a", "b", "c"):
        thread.send(user(text))
    told = upstream.samples[2].messages
    assert [message["role"] for message in told] == ["user", "assistant"] * 2 + ["user"]
    assert upstream.samples[2].body["system"] == "Be brief."
    assert upstream.samples[2].tool_names[0] == "code_execution"


def test_a_thread_that_is_not_known_is_replayed_by_the_client(
    upstream: ScriptedUpstream, client: Any, gateway: Gateway
) -> None:
    thread = client.beta.messages.thread(model=MODEL, max_tokens=100)
    upstream.will(says("One."), says("Two."))
    thread.send(user("a"))
    gateway.application.services.threads.forget_all()
    assert thread.send(user("b")).content[0].text == "Two."
    assert [message["role"] for message in upstream.samples[1].messages] == ["user", "assistant", "user"]


def test_a_thread_belongs_to_its_owner(upstream: ScriptedUpstream, client: Any, gateway: Gateway) -> None:
    upstream.will(says("One."))
    first = client.beta.messages.create(
        model=MODEL,
        max_tokens=100,
        messages=[user("a")],
        thread={"type": "create"},
    )
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-of-another", max_retries=0) as other:
        with pytest.raises(anthropic.NotFoundError) as caught:
            other.beta.messages.create(
                model=MODEL,
                max_tokens=100,
                messages=[user("b")],
                thread={"type": "continue", "previous_message_id": first.id},
            )
    assert caught.value.error_code == "thread_not_found"
    assert caught.value.type == "not_found_error"


def test_a_thread_keeps_its_tools_and_system(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says("One."))
    first = client.beta.messages.create(
        model=MODEL,
        max_tokens=100,
        messages=[user("a")],
        system="x",
        thread={"type": "create"},
    )
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.beta.messages.create(
            model=MODEL,
            max_tokens=100,
            messages=[user("b")],
            system="y",
            thread={"type": "continue", "previous_message_id": first.id},
        )
    assert caught.value.error_code == "thread_fingerprint_mismatch"
