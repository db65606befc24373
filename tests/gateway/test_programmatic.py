"""Code that calls tools of the client's: pause at the call, go on with its result."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anthropic
import pytest

from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.running.cell_run import CallLimits
from tests.gateway.clients import CODE_TOOL, KEY, Asking, results, said, shape, texts, user, weather_tool
from tests.gateway.gateways import Gateway, running_gateway
from tests.gateway.upstreams import ScriptedUpstream, python, says, tool_use

TOOLS = [CODE_TOOL, weather_tool()]
QUESTION = user("How is the weather?")


def calls(answer: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(block.name, block.input) for block in answer.content if block.type == "tool_use"]


def printed(answer: Any) -> str:
    found = [block for block in answer.content if block.type == "code_execution_tool_result"]
    assert len(found) == 1
    assert found[0].content.return_code == 0, found[0].content.stderr
    return str(found[0].content.stdout)


def test_code_waits_for_a_tool_and_goes_on_with_its_result(upstream: ScriptedUpstream, ask: Asking) -> None:
    code = "w = await get_weather({'location': 'SF'})\nprint('it is', w)"
    upstream.will(says("Let me see.", python(code)), says("Sunny."))
    first = ask([QUESTION], TOOLS)
    assert shape(first) == ["text", "server_tool_use", "tool_use"]
    assert first.stop_reason == "tool_use"
    cell, call = first.content[1], first.content[2]
    assert cell.type == "server_tool_use"
    assert call.type == "tool_use"
    assert (call.name, call.input, call.id[:6]) == ("get_weather", {"location": "SF"}, "toolu_")
    assert call.caller is not None
    assert call.caller.to_dict() == {"type": "code_execution_20260120", "tool_id": cell.id}

    second = ask([QUESTION, said(first), results(first, "sunny")], TOOLS, container=first.container.id)
    assert shape(second) == ["code_execution_tool_result", "text"]
    assert second.content[0].to_dict()["tool_use_id"] == cell.id
    assert printed(second) == "it is sunny\n"
    assert (second.stop_reason, texts(second)) == ("end_turn", "Sunny.")
    assert (second.usage.input_tokens, second.usage.output_tokens) == (10, 5)

    # The model has seen an ordinary call and what its code printed, nothing of the weather tool's exchange.
    assert upstream.samples[0].tool_names == ["code_execution", "bash_code_execution", "text_editor_code_execution"]
    assert "async def get_weather(location: str) -> str" in upstream.samples[0].body["tools"][0]["description"]
    conversation = upstream.samples[1].messages
    assert [message["role"] for message in conversation] == ["user", "assistant", "user"]
    assert [block["type"] for block in conversation[1]["content"]] == ["text", "tool_use"]
    assert [block["type"] for block in conversation[2]["content"]] == ["tool_result"]
    assert "get_weather" not in json.dumps(conversation[2])


def test_one_call_after_the_other_without_sampling_in_between(upstream: ScriptedUpstream, ask: Asking) -> None:
    code = "for place in ('A', 'B', 'C'):\n    print(place, await get_weather(location=place))"
    upstream.will(says(python(code)), says("done"))
    history = [QUESTION]
    answer = ask(history, TOOLS)
    container = answer.container.id
    for place, weather in (("A", "rain"), ("B", "snow")):
        assert calls(answer) == [("get_weather", {"location": place})]
        history += [said(answer), results(answer, weather)]
        answer = ask(history, TOOLS, container=container)
        assert shape(answer) == ["tool_use"]
        assert answer.stop_reason == "tool_use"
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (0, 0)
        assert len(upstream.samples) == 1
    history += [said(answer), results(answer, "wind")]
    answer = ask(history, TOOLS, container=container)
    assert printed(answer) == "A rain\nB snow\nC wind\n"
    assert len(upstream.samples[1].messages) == 3

    # And the whole of it as history of a later question.
    upstream.will(says("bye"))
    history += [said(answer), user("thanks")]
    ask(history, TOOLS, container=container)
    assert upstream.samples[2].messages[:3] == upstream.samples[1].messages
    assert [message["role"] for message in upstream.samples[2].messages] == ["user", "assistant"] * 2 + ["user"]


GATHERED = """\
import asyncio
a, b = await asyncio.gather(get_weather(location='A'), get_weather(location='B'))
print(a, b)
"""
GATHERED_IN_A_LOOP_OF_ITS_OWN = """\
import asyncio
async def main():
    return await asyncio.gather(*[get_weather({'location': place}) for place in 'AB'])
print(*asyncio.run(main()))
"""


@pytest.mark.parametrize("code", [GATHERED, GATHERED_IN_A_LOOP_OF_ITS_OWN])
def test_calls_made_together_are_told_together(upstream: ScriptedUpstream, ask: Asking, code: str) -> None:
    upstream.will(says(python(code)), says("done"))
    first = ask([QUESTION], TOOLS)
    assert calls(first) == [("get_weather", {"location": "A"}), ("get_weather", {"location": "B"})]
    second = ask([QUESTION, said(first), results(first, "rain", "snow")], TOOLS, container=first.container.id)
    assert printed(second) == "rain snow\n"


def test_a_result_that_is_an_error_is_raised_in_the_code(upstream: ScriptedUpstream, ask: Asking) -> None:
    code = "try:\n    await get_weather(location='A')\nexcept Exception as error:\n    print('caught', error)"
    upstream.will(says(python(code)), says("done"))
    first = ask([QUESTION], TOOLS)
    failed = results(first, "no such place", is_error=True)
    second = ask([QUESTION, said(first), failed], TOOLS, container=first.container.id)
    assert printed(second) == "caught no such place\n"


def test_a_result_that_comes_too_late_finds_code_that_has_given_up(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    code = "try:\n    await get_weather(location='A')\nexcept TimeoutError as error:\n    print(repr(error))\n    raise"
    upstream.will(says(python(code)), says("It took too long."))
    limits = ContainerSettings(calls=CallLimits(call_seconds=0.2))
    with running_gateway(tmp_path, upstream.url, limits) as gateway:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            ask = Asking(client, stream=True)
            first = ask([QUESTION], TOOLS)
            until_ended(client, first.container.id)
            second = ask([QUESTION, said(first), results(first, "rain")], TOOLS, container=first.container.id)
    told = "TimeoutError: Calling tool ['get_weather'] timed out (no response after 0.2s)."
    assert told in second.content[0].content.stderr
    assert told in upstream.samples[1].messages[-1]["content"][0]["content"]


def until_ended(client: Any, container_id: str) -> None:
    until = time.monotonic() + 30
    while client.get(f"/v1/containers/{container_id}", cast_to=object)["state"] == "waiting":
        assert time.monotonic() < until


def test_a_cell_has_its_time(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.will(says(python("while True: pass")), says("It took too long."))
    with running_gateway(tmp_path, upstream.url, ContainerSettings(calls=CallLimits(cell_seconds=0.2))) as gateway:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            answer = Asking(client, stream=False)([QUESTION], TOOLS)
    content = answer.content[1].to_dict()["content"]
    assert content["type"] == "code_execution_result"
    assert content["return_code"] != 0
    assert "execution time exceeded" in content["stderr"]


def test_the_entry_of_code_execution_may_be_missing(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("print(await get_weather(location='A'))")), says("done"))
    first = ask([QUESTION], [weather_tool()])
    assert calls(first) == [("get_weather", {"location": "A"})]
    assert upstream.samples[0].tool_names[0] == "code_execution"


def test_a_tool_for_both_callers_is_there_for_both(upstream: ScriptedUpstream, ask: Asking) -> None:
    both = weather_tool(allowed_callers=["direct", "code_execution_20260521"])
    upstream.will(says(tool_use("get_weather", location="B")), says(python("print(await get_weather(location='A'))")))
    direct = ask([QUESTION], [CODE_TOOL, both])
    assert direct.stop_reason == "tool_use"
    call = direct.content[0]
    assert call.type == "tool_use"
    assert call.caller is not None
    assert call.caller.type == "direct"
    assert upstream.samples[0].tool_names[-1] == "get_weather"
    assert "allowed_callers" not in upstream.samples[0].body["tools"][-1]

    inner = ask([QUESTION, said(direct), results(direct, "fog")], [CODE_TOOL, both])
    assert calls(inner) == [("get_weather", {"location": "A"})]
    told = upstream.samples[1].messages
    assert "caller" not in told[1]["content"][0]
    assert told[2]["content"][0]["content"] == "fog"


def test_code_beside_a_clients_tool_waits_for_it(upstream: ScriptedUpstream, ask: Asking) -> None:
    clock = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
    upstream.will(says(python("print('ran')"), tool_use("clock")), says("It is noon."))
    first = ask([QUESTION], [CODE_TOOL, clock])
    assert shape(first) == ["server_tool_use", "tool_use"]
    assert first.stop_reason == "tool_use"
    second = ask([QUESTION, said(first), results(first, "noon")], [CODE_TOOL, clock])
    assert shape(second) == ["code_execution_tool_result", "text"]
    assert printed(second) == "ran\n"
    told = upstream.samples[1].messages
    assert [message["role"] for message in told] == ["user", "assistant", "user"]
    assert [block["content"] for block in told[2]["content"]] == ["ran", "noon"]
    assert [b["tool_use_id"] for b in told[2]["content"]] == [b["id"] for b in told[1]["content"]]


def test_code_beside_a_clients_tool_may_wait_once_more_for_its_own(upstream: ScriptedUpstream, ask: Asking) -> None:
    clock = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
    tools = [*TOOLS, clock]
    upstream.will(says(tool_use("clock"), python("print(await get_weather(location='A'))")), says("done"))
    first = ask([QUESTION], tools)
    assert shape(first) == ["tool_use", "server_tool_use"]
    history = [QUESTION, said(first), results(first, "noon")]
    second = ask(history, tools)
    assert calls(second) == [("get_weather", {"location": "A"})]
    history += [said(second), results(second, "rain")]
    third = ask(history, tools, container=second.container.id)
    assert printed(third) == "rain\n"
    told = upstream.samples[1].messages
    assert [message["role"] for message in told] == ["user", "assistant", "user"]
    assert sorted(block["content"] for block in told[2]["content"]) == ["noon", "rain"]


def test_several_cells_of_one_sample_run_in_order_around_a_pause(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(
        says(python("x = await get_weather(location='A')"), python("print(x * 2)"), python("print(x * 3)")),
        says("done"),
    )
    first = ask([QUESTION], TOOLS)
    assert shape(first) == ["server_tool_use"] * 3 + ["tool_use"]
    second = ask([QUESTION, said(first), results(first, "ab")], TOOLS, container=first.container.id)
    assert shape(second) == ["code_execution_tool_result"] * 3 + ["text"]
    outputs = [block.content.stdout for block in second.content if block.type == "code_execution_tool_result"]
    assert outputs == ["", "abab\n", "ababab\n"]
    assert [block["content"] for block in upstream.samples[1].messages[2]["content"]] == [
        "(no output)",
        "abab",
        "ababab",
    ]


@pytest.mark.deep("restarts")
def test_what_the_model_did_not_have_to_read_is_counted(
    upstream: ScriptedUpstream, client: Any, gateway: Gateway
) -> None:
    upstream.will(says(python("data = await get_weather(location='A')\nprint(len(data))")), says("done"))
    ask = Asking(client, stream=False)
    first = ask([QUESTION], TOOLS)
    history = [QUESTION, said(first), results(first, "x" * 40_000)]
    answer = client.messages.with_raw_response.create(
        model="m",
        max_tokens=10,
        messages=history,
        tools=TOOLS,
        container=first.container.id,
    )
    assert answer.headers["ramet-tokens-kept-out"] == "10000"
    counted = gateway.application.services.metrics.exposition().decode()
    line = next(line for line in counted.splitlines() if line.startswith("ramet_gateway_tokens_kept_out_total"))
    assert float(line.split()[1]) >= 10_000
