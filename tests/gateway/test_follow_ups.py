"""Requests that name no container: the history tells in which one its code ran."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest

from ramet import AsyncSandbox
from ramet.doors.gateway.containers import container as containers_container
from tests.gateway.clients import CODE_TOOL, KEY, Asking, said, texts, user, weather_tool
from tests.gateway.gateways import Gateway, running_gateway
from tests.gateway.rooms import ALICE, BOB, a_place, carried_out, content
from tests.gateway.rooms import python as python_request
from tests.gateway.upstreams import ScriptedUpstream, editor, python, says

QUESTION = user("Remember 6.")
MORE = user("Times seven?")
NEW = "[this is a new container: variables and files of the earlier calls are gone"


def outcome(answer: Any) -> tuple[str, str]:
    """What the one cell of an answer printed: stdout, stderr."""
    (block,) = [block for block in answer.content if block.type == "code_execution_tool_result"]
    return block.content.stdout, block.content.stderr


def test_a_follow_up_with_the_history_alone_finds_its_container(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("x = 6")), says("Done."), says(python("print(x * 7)")), says("42."))
    first = ask([QUESTION])
    second = ask([QUESTION, said(first), MORE])
    assert outcome(second) == ("42\n", "")
    assert second.container.id == first.container.id


def test_the_container_is_told_even_if_no_code_runs(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("x = 6")), says("Done."), says("Forty-two."))
    first = ask([QUESTION])
    assert ask([QUESTION, said(first), MORE]).container.id == first.container.id


def test_a_container_that_is_named_wins(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("x = 6")), says("Done."), says(python("x = 8")), says("Done."))
    first, other = ask([QUESTION]), ask([user("Remember 8.")])
    assert first.container.id != other.container.id
    upstream.will(says(python("print(x)")), says("8."))
    assert outcome(ask([QUESTION, said(first), MORE], container=other.container.id)) == ("8\n", "")


def test_the_last_code_of_a_history_tells_the_container(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("x = 6")), says("Done."), says(python("x = 8")), says("Done."))
    first, second = ask([QUESTION]), ask([user("Remember 8.")])
    upstream.will(says(python("print(x)")), says("8."))
    answer = ask([QUESTION, said(first), user("Remember 8."), said(second), user("What was it?")])
    assert outcome(answer) == ("8\n", "")
    assert answer.container.id == second.container.id


def test_ids_of_another_keys_calls_lead_nowhere(upstream: ScriptedUpstream, client: Any, gateway: Gateway) -> None:
    upstream.will(says(python("x = 6")), says("Done."), says(python("print('x' in dir())")), says("No."))
    first = Asking(client, stream=False)([QUESTION])
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-of-another", max_retries=0) as other:
        answer = Asking(other, stream=False)([QUESTION, said(first), MORE])
    assert answer.container.id != first.container.id
    stdout, stderr = outcome(answer)
    assert stdout == "False\n"
    assert stderr.startswith(NEW)


def test_a_container_that_is_gone_is_replaced_by_a_new_one_that_says_so_once(
    upstream: ScriptedUpstream, ask: Asking
) -> None:
    upstream.will(says(python("x = 6")), says("Done."))
    first = ask([QUESTION])
    ask.client.delete(f"/v1/containers/{first.container.id}", cast_to=object)
    upstream.will(says(editor(command="view", path="/root"), python("x = 7; print('fresh')")), says("Sorry."))
    history = [QUESTION, said(first), MORE]
    second = ask(history)
    stdout, stderr = outcome(second)
    assert stdout == "fresh\n"
    assert stderr.startswith(NEW)
    assert stderr.count("\n") == 1
    assert NEW in upstream.samples[-1].messages[-1]["content"][-1]["content"]
    upstream.will(says(python("print(x)")), says("7."))
    third = ask([*history, said(second), user("And now?")])
    assert outcome(third) == ("7\n", "")
    assert third.container.id == second.container.id


def test_a_container_whose_frozen_sandbox_cannot_be_had_any_more_is_replaced(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.will(says(python("x = 6")), says("Done."), says(python("print('x' in dir())")), says("No."))
    with running_gateway(tmp_path, upstream.url) as gateway:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            ask = Asking(client, stream=False)
            first = ask([QUESTION])
            gateway.do(_freeze_and_lose(gateway, first.container.id))
            answer = ask([QUESTION, said(first), MORE])
    stdout, stderr = outcome(answer)
    assert stdout == "False\n"
    assert stderr.startswith(NEW)


async def _freeze_and_lose(gateway: Gateway, container_id: str) -> None:
    """What sleeps is on disk: without it there is nothing to resume."""
    container = gateway.application.services.rooms.containers._all[container_id]
    async with asyncio.timeout(30):
        while container.busy:
            await asyncio.sleep(0.01)
    await container.freeze()
    await AsyncSandbox.discard(str(container.stored().sandbox_id))


def test_a_question_without_code_execution_opens_no_container(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("x = 6")), says("Done."), says("Hello."))
    first = ask([QUESTION])
    answer = ask([QUESTION, said(first), user("Hello?")], tools=())
    assert (answer.container, texts(answer)) == (None, "Hello.")


async def test_an_id_that_two_containers_know_leads_to_neither(tmp_path: Path) -> None:
    async with a_place(tmp_path) as place:
        first, second = await place.container(), await place.container()
        same, own = python_request("1"), python_request("2")
        for container in (first, second):
            await carried_out(container, same)
        await carried_out(first, own)
        find = place.containers.find_by_cells
        assert find(ALICE, [same.tool_use_id]) is None
        assert find(ALICE, [same.tool_use_id, own.tool_use_id]) == first.id
        assert find(BOB, [own.tool_use_id]) is None
        assert find(ALICE, ["srvtoolu_never"]) is None


async def test_a_copy_does_not_know_the_calls_of_its_parent(tmp_path: Path) -> None:
    async with a_place(tmp_path) as place:
        container = await place.container()
        before, after = python_request("x = 1"), python_request("x")
        await carried_out(container, before)
        (child,) = await place.containers.fork(ALICE, container.id, 1)
        assert content(await carried_out(child, after))["stdout"] == "1\n"
        assert place.containers.find_by_cells(ALICE, [before.tool_use_id]) == container.id
        assert place.containers.find_by_cells(ALICE, [after.tool_use_id]) == child.id


async def test_a_container_remembers_its_last_calls_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers_container, "CELL_IDS_KEPT", 2)
    async with a_place(tmp_path) as place:
        container = await place.container()
        requests = [python_request("1") for _ in range(3)]
        for request in requests:
            await carried_out(container, request)
        found = [place.containers.find_by_cells(ALICE, [request.tool_use_id]) for request in requests]
        assert found == [None, container.id, container.id]


# A tool's name that code has used for something else


def test_a_tool_whose_name_code_has_used_is_callable_in_the_next_turn(upstream: ScriptedUpstream, ask: Asking) -> None:
    tools = [CODE_TOOL, weather_tool()]
    upstream.will(says(python("get_weather = 3"), python("print(get_weather)")), says("3."))
    first = ask([QUESTION], tools)
    assert [block.content.stdout for block in first.content if block.type == "code_execution_tool_result"] == [
        "",
        "3\n",
    ]
    upstream.will(says(python("print(await get_weather(location='A'))")))
    second = ask([QUESTION, said(first), MORE], tools)
    assert [block.name for block in second.content if block.type == "tool_use"] == ["get_weather"]
