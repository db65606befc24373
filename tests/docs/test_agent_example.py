"""examples/agent.py: the loop feeds errors back, forks, keeps the winner, and ends whatever the model does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

from ramet import Sandbox
from tests.docs import loading


@pytest.fixture(scope="module")
def agent() -> Iterator[ModuleType]:
    with loading.example("agent") as module:
        yield module


@pytest.fixture
def sandbox(agent: ModuleType) -> Iterator[Sandbox]:
    with Sandbox(tools=[agent.fetch_orders], memory_mib=512) as made:
        yield made


class ModelThatSays:
    """Gives these replies one after the other, and the last one again and again."""

    def __init__(self, *replies: Any) -> None:
        self._replies = list(replies)

    def reply(self, messages: Sequence[Any], tools: Sequence[Mapping[str, Any]]) -> Any:
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]


def results_of(conversation: Any) -> list[Any]:
    return [result for message in conversation.messages if isinstance(message, tuple) for result in message]


def test_the_answer_of_the_agent_is_the_one_that_the_data_gives(agent: ModuleType, sandbox: Sandbox) -> None:
    orders = agent.fetch_orders("south")
    months = [sum(order["cents"] for order in orders if order["month"] == month) for month in range(1, 13)]
    expected = months[-1] + (months[-1] - months[-2])
    conversation = agent.Conversation("How much?")
    answer = conversation.run(agent.ScriptedModel(), sandbox)
    assert f"{expected / 100:.2f}" in answer


def test_the_model_reads_its_error_and_a_way_that_failed_does_not_stop_the_others(
    agent: ModuleType, sandbox: Sandbox
) -> None:
    conversation = agent.Conversation("How much?")
    conversation.run(agent.ScriptedModel(), sandbox)
    results = results_of(conversation)
    assert results[0].failed
    assert "KeyError: 'amount'" in results[0].text
    (tried,) = [result for result in results if result.call.name == "try_ways"]
    outcomes = json.loads(tried.text)
    assert "ModuleNotFoundError" in outcomes["a library that is missing"]
    assert float(outcomes["the last step again"]) == 0.0


def test_the_forks_that_lost_are_closed_and_the_winner_is_the_sandbox(agent: ModuleType, sandbox: Sandbox) -> None:
    before = {row.id for row in Sandbox.list_all()}
    agent.Conversation("How much?").run(agent.ScriptedModel(), sandbox)
    assert {row.id for row in Sandbox.list_all()} == before
    assert sandbox.run_code("forecast([1, 2])").value == "3"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("fly", {}, "there is no tool 'fly'"),
        ("run_python", {}, "KeyError('code')"),
        ("run_python", {"code": 3}, "these arguments do not fit"),
        ("try_ways", {"ways": 3}, "these arguments do not fit"),
        ("try_ways", {"ways": {}}, "these arguments do not fit"),
        ("keep", {"name": "never tried"}, "these arguments do not fit"),
    ],
)
def test_a_wrong_call_is_text_for_the_model(
    agent: ModuleType, sandbox: Sandbox, name: str, arguments: dict[str, object], expected: str
) -> None:
    call = agent.Reply(calls=(agent.ToolCall("call_1", name, arguments),))
    conversation = agent.Conversation("?")
    assert conversation.run(ModelThatSays(call, agent.Reply("sorry")), sandbox) == "sorry"
    (result,) = results_of(conversation)
    assert result.failed
    assert expected in result.text


def test_a_model_that_never_answers_is_stopped(agent: ModuleType, sandbox: Sandbox) -> None:
    again = agent.Reply(calls=(agent.ToolCall("call_1", "run_python", {"code": "1"}),))
    with pytest.raises(RuntimeError, match="20 steps"):
        agent.Conversation("?").run(ModelThatSays(again), sandbox)


def test_long_output_is_cut_before_the_model_reads_it(agent: ModuleType, sandbox: Sandbox) -> None:
    text = agent.for_the_model(sandbox.run_code("print('a' * 100_000); 'the end'"))
    assert len(text) < agent.SHOWN_CHARACTERS + 100
    assert text.endswith("'the end'")
