"""Tools of the client's are commands in bash: a command waits for the client, and prints what it answers."""

from __future__ import annotations

from typing import Any

from tests.gateway.clients import CODE_TOOL, Asking, results, said, shape, user, weather_tool
from tests.gateway.upstreams import ScriptedUpstream, bash, python, says

TOOLS = [CODE_TOOL, weather_tool()]
QUESTION = user("How is the weather?")


def result(answer: Any) -> dict[str, Any]:
    """Of the one cell that ended."""
    (found,) = [block.to_dict() for block in answer.content if block.type.endswith("execution_tool_result")]
    content: dict[str, Any] = found["content"]
    return content


def test_a_command_waits_for_the_client_and_prints_its_text(upstream: ScriptedUpstream, ask: Asking) -> None:
    script = (
        "get_weather --location SF > weather.json\npython -c 'import json; print(json.load(open(\"weather.json\")))'"
    )
    upstream.will(says(bash(script)), says("Mild."))
    first = ask([QUESTION], TOOLS)
    assert shape(first) == ["server_tool_use", "tool_use"]
    assert first.stop_reason == "tool_use"
    cell, call = first.content
    assert cell.name == "bash_code_execution"
    assert (call.name, call.input) == ("get_weather", {"location": "SF"})
    assert call.caller.to_dict() == {"type": "code_execution_20260120", "tool_id": cell.id}

    second = ask([QUESTION, said(first), results(first, '{"degrees": 20}')], TOOLS, container=first.container.id)
    assert shape(second) == ["bash_code_execution_tool_result", "text"]
    assert second.content[0].to_dict()["tool_use_id"] == cell.id
    assert result(second) == {
        "type": "bash_code_execution_result",
        "stdout": "{'degrees': 20}\n",
        "stderr": "",
        "return_code": 0,
        "content": [],
    }
    assert [block["content"] for block in upstream.samples[1].messages[-1]["content"]] == ["{'degrees': 20}"]


def test_commands_one_after_the_other_are_answers_one_after_the_other(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(bash("for place in A B; do get_weather --location $place; done; exit 3")), says("done"))
    history, container = [QUESTION], None
    for location in ("A", "B"):
        answer = ask(history, TOOLS, **({"container": container} if container else {}))
        container = answer.container.id
        assert [block.input for block in answer.content if block.type == "tool_use"] == [{"location": location}]
        history += [said(answer), results(answer, f"rain in {location}")]
    last = ask(history, TOOLS, container=container)
    assert (result(last)["stdout"], result(last)["return_code"]) == ("rain in A\nrain in B\n", 3)
    assert len(upstream.samples) == 2


def test_an_error_of_the_clients_tool_is_an_error_of_the_command(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(bash("get_weather --location X || echo status $?")), says("done"))
    first = ask([QUESTION], TOOLS)
    failed = results(first, "no such place", is_error=True)
    second = ask([QUESTION, said(first), failed], TOOLS, container=first.container.id)
    assert (result(second)["stdout"], result(second)["stderr"]) == ("status 1\n", "get_weather: no such place\n")


def test_a_command_in_a_python_cell_prints_the_same_text(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("!get_weather --location SF")), says("done"))
    first = ask([QUESTION], TOOLS)
    second = ask([QUESTION, said(first), results(first, 'say "hello"\n')], TOOLS, container=first.container.id)
    assert result(second)["stdout"] == 'say "hello"\n'


def test_the_model_is_told_of_the_commands_if_there_are_any(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says("hello"), says("hello"))
    for tools, named in ((TOOLS, True), ([CODE_TOOL], False)):
        ask([QUESTION], tools)
        (described,) = [
            tool["description"] for tool in upstream.samples[-1].body["tools"] if tool["name"] == "bash_code_execution"
        ]
        assert ("`get_weather --help`" in described) == named
        assert ("get_weather --json '{...}'" in described) == named
