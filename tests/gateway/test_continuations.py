"""Tool results that are sent twice, because the first answer did not arrive: one answer, and nothing runs twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import anthropic
import pytest

from tests.gateway.clients import CODE_TOOL, Asking, results, said, shape, texts, user, weather_tool
from tests.gateway.gateways import Gateway
from tests.gateway.upstreams import Exchange, ScriptedUpstream, fails, python, says, tool_use

TOOLS = [CODE_TOOL, weather_tool()]
QUESTION = user("How is the weather?")
COUNTING = """\
runs = globals().get('runs', 0) + 1
w = await get_weather(location='A')
print(runs, w)
"""


def test_the_same_results_again_get_the_same_answer(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python(COUNTING)), says(python("runs += 10; print(runs)")), says("done"))
    first = ask([QUESTION], TOOLS)
    history = [QUESTION, said(first), results(first, "rain")]
    answers = [ask(history, TOOLS, container=first.container.id) for _ in range(3)]
    assert {answer.id for answer in answers} == {answers[0].id}
    assert [answer.content for answer in answers] == [answers[0].content] * 3
    assert answers[0].usage == answers[2].usage
    assert len(upstream.samples) == 3
    upstream.will(says(python("print(runs)")), says("done"))
    assert ask("how often?", container=first.container.id).content[1].content.stdout == "11\n"


def test_the_same_results_at_the_same_time_get_the_same_answer(upstream: ScriptedUpstream, ask: Asking) -> None:
    both = threading.Barrier(2)

    def slow(exchange: Exchange) -> None:
        both.wait(30)  # until both requests are surely on their way
        says("done")(exchange)

    upstream.will(says(python(COUNTING)), slow)
    first = ask([QUESTION], TOOLS)
    history, container = [QUESTION, said(first), results(first, "rain")], first.container.id
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(ask, history, TOOLS, container=container) for _ in range(3)]
        both.wait(30)
        answers = [one.result(30) for one in asked]
    assert {answer.id for answer in answers} == {answers[0].id}
    assert len(upstream.samples) == 2
    assert answers[0].content[0].content.stdout == "1 rain\n"


def test_a_pause_is_told_again_as_it_was(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("for x in 'ABC':\n    await get_weather(location=x)")))
    first = ask([QUESTION], TOOLS)
    history = [QUESTION, said(first), results(first, "rain")]
    second, again = [ask(history, TOOLS, container=first.container.id) for _ in range(2)]
    assert second.content == again.content
    assert second.content[0].input == {"location": "B"}


def test_results_that_differ_from_the_first_are_refused(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python(COUNTING)), says("done"))
    first = ask([QUESTION], TOOLS)
    ask([QUESTION, said(first), results(first, "rain")], TOOLS, container=first.container.id)
    with pytest.raises(anthropic.BadRequestError, match="already answered with other results"):
        ask([QUESTION, said(first), results(first, "snow")], TOOLS, container=first.container.id)


def test_an_upstream_that_fails_after_the_code_has_ended_does_not_make_it_run_again(
    upstream: ScriptedUpstream, ask: Asking
) -> None:
    """The gateway tries again itself; then the client does, and the turn goes on where it was."""
    overloaded = fails(529, "overloaded_error", "Overloaded")
    upstream.will(says(python(COUNTING)), says(python("runs += 10; print(runs)")), *[overloaded] * 3, says("done"))
    first = ask([QUESTION], TOOLS)
    history = [QUESTION, said(first), results(first, "rain")]
    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        ask(history, TOOLS, container=first.container.id)
    assert len(upstream.samples) == 5
    answer = ask(history, TOOLS, container=first.container.id)
    assert shape(answer) == [
        "code_execution_tool_result",
        "server_tool_use",
        "code_execution_tool_result",
        "text",
    ]
    assert answer.content[2].content.stdout == "11\n"
    assert (texts(answer), answer.stop_reason) == ("done", "end_turn")


def test_the_published_client_comes_again_by_itself(upstream: ScriptedUpstream, gateway: Gateway) -> None:
    overloaded = fails(529, "overloaded_error", "Overloaded", {"retry-after-ms": "1"})
    upstream.will(says(python(COUNTING)), *[overloaded] * 4, says("done"))
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-of-a-test-client", max_retries=2) as client:
        ask = Asking(client, stream=False)
        first = ask([QUESTION], TOOLS)
        answer = ask([QUESTION, said(first), results(first, "rain")], TOOLS, container=first.container.id)
    assert answer.content[0].content.stdout == "1 rain\n"
    assert texts(answer) == "done"


def test_results_for_code_that_is_gone_end_in_a_result_that_says_so(
    upstream: ScriptedUpstream, ask: Asking, gateway: Gateway
) -> None:
    """A gateway that was started anew, or a container that was frozen meanwhile, knows nothing of the calls."""
    upstream.will(says(python("1")), says("ok"), says("The code is gone."))
    other = ask("begin")
    cell = {"type": "server_tool_use", "id": "srvtoolu_gone", "name": "code_execution", "input": {"code": "x"}}
    caller = {"type": "code_execution_20260120", "tool_id": "srvtoolu_gone"}
    call = {"type": "tool_use", "id": "toolu_gone", "name": "get_weather", "input": {}, "caller": caller}
    result = {"type": "tool_result", "tool_use_id": "toolu_gone", "content": "late"}
    history = [QUESTION, {"role": "assistant", "content": [cell, call]}, user([result])]
    answer = ask(history, TOOLS, container=other.container.id)
    assert answer.content[0].to_dict()["content"] == {
        "type": "code_execution_tool_result_error",
        "error_code": "unavailable",
    }
    assert texts(answer) == "The code is gone."


def test_code_that_waited_beside_a_clients_tool_runs_once_however_often_the_result_comes(
    upstream: ScriptedUpstream, ask: Asking
) -> None:
    clock = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
    upstream.will(says(python("n = 0")), says("ok"))
    container = ask("begin").container
    assert container is not None
    upstream.will(says(python("n += 1\nprint(n)"), tool_use("clock")), says("It is noon."))
    tools = [CODE_TOOL, clock]
    first = ask([QUESTION], tools, container=container.id)
    history = [QUESTION, said(first), results(first, "noon")]
    answers = [ask(history, tools, container=container.id) for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert answers[0].content[0].content.stdout == "1\n"


def test_a_turn_that_failed_half_way_goes_on_when_the_same_request_comes_again(
    upstream: ScriptedUpstream, ask: Asking
) -> None:
    upstream.will(says(python("n = 0")), says("ok"))
    container = ask("begin").container.id
    overloaded = fails(529, "overloaded_error", "Overloaded")
    upstream.will(says(python("n += 1\nprint(n)")), *[overloaded] * 3, says("done"))
    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        ask([QUESTION], container=container)
    answer = ask([QUESTION], container=container)
    assert shape(answer) == ["server_tool_use", "code_execution_tool_result", "text"]
    assert answer.content[1].content.stdout == "1\n"
    upstream.will(says(python("n += 1\nprint(n)")), says("done"))
    assert ask([QUESTION], container=container).content[1].content.stdout == "2\n"
