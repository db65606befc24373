"""Programmatic tool calls: code stops at a call of a client's tool, and goes on with its result in a later request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramet.doors.gateway.containers.registry import ContainerBusy
from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.running.answers import AnswerRefused
from ramet.doors.gateway.running.cell_run import ClientTool, Waiting
from tests.gateway.rooms import (
    ALICE,
    Place,
    a_place,
    bash,
    carried_out,
    come_next,
    content,
    ends,
    pieces,
    python,
    quick,
    waits,
)
from tests.waiting import settle, until

WEATHER = ClientTool(
    "get_weather",
    "The weather at a place.",
    {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
)
ANYTHING = ClientTool("look-up", "", {"type": "object"})


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with a_place(tmp_path) as some:
        yield some


def ids(waiting: Waiting) -> list[str]:
    return [call.id for call in waiting.calls]


async def test_code_waits_for_a_call_and_goes_on_with_its_text(place: Place) -> None:
    container = await place.container()
    code = "import json\ntext = await get_weather({'location': 'SF'})\nprint(json.loads(text)['degrees'] + 1)"
    run = await container.start(python(code), [WEATHER])
    (call,) = (await waits(run)).calls
    assert call.id.startswith("toolu_")
    assert (call.name, dict(call.input)) == ("get_weather", {"location": "SF"})
    assert (container.state, container.pending, run.calls) == ("waiting", run, [call])
    run.answer(call.id, '{"degrees": 20}', False)
    assert run.calls == []
    finished = await ends(run)
    assert (content(finished)["stdout"], content(finished)["return_code"]) == ("21\n", 0)
    assert finished.hidden_chars == len('{"degrees": 20}')
    assert container.pending is None


@pytest.mark.parametrize(
    "code",
    [
        "print(await get_weather({'location': 'SF'}))",
        "print(await get_weather(location='SF'))",
        "print(get_weather(location='SF'))",
        "import asyncio\nasync def main():\n    print(await get_weather({'location': 'SF'}))\nasyncio.run(main())",
    ],
)
async def test_a_tool_can_be_called_in_each_published_way(place: Place, code: str) -> None:
    container = await place.container()
    run = await container.start(python(code), [WEATHER])
    (call,) = (await waits(run)).calls
    run.answer(call.id, "sunny", False)
    assert content(await ends(run))["stdout"] == "sunny\n"


async def test_parallel_calls_are_told_together_and_sequential_ones_one_by_one(place: Place) -> None:
    container = await place.container()
    code = (
        "import asyncio\n"
        "places = ['SF', 'NY', 'LA']\n"
        "found = await asyncio.gather(*(get_weather({'location': place}) for place in places))\n"
        "for place in places:\n"
        "    found.append(await get_weather({'location': place + '!'}))\n"
        "print(found)"
    )
    run = await container.start(python(code), [WEATHER])
    first = await waits(run)
    assert [call.input["location"] for call in first.calls] == ["SF", "NY", "LA"]
    for call in reversed(first.calls):
        run.answer(call.id, str(call.input["location"]).lower(), False)
    for name in ("SF!", "NY!", "LA!"):
        (call,) = (await waits(run)).calls
        assert call.input["location"] == name
        run.answer(call.id, name.lower(), False)
    assert content(await ends(run))["stdout"] == "['sf', 'ny', 'la', 'sf!', 'ny!', 'la!']\n"


async def test_results_of_blocks_become_text_and_errors_are_raised(place: Place) -> None:
    container = await place.container()
    code = (
        "print(await get_weather(location='a'))\n"
        "try:\n    await get_weather(location='b')\nexcept ToolError as error:\n    print('failed:', error)\n"
        "print([await get_weather(location='c')])"
    )
    run = await container.start(python(code), [WEATHER])
    found: dict[str, object] = {"type": "search_result", "source": "http://x"}
    answers: list[tuple[str | list[dict[str, object]] | None, bool]] = [
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, found], False),
        ("no such place", True),
        (None, False),
    ]
    for text, is_error in answers:
        (call,) = (await waits(run)).calls
        run.answer(call.id, text, is_error)
    stdout = content(await ends(run))["stdout"]
    assert stdout == 'one\ntwo\n{"type": "search_result", "source": "http://x"}\nfailed: no such place\n[\'\']\n'


async def test_asking_again_before_answering_tells_the_same_calls(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("print(await get_weather(location='SF'))"), [WEATHER])
    assert await waits(run) == await waits(run)
    run.answer(run.calls[0].id, "x", False)
    await ends(run)


async def test_a_repeated_continuation_gets_what_it_got_before(place: Place) -> None:
    container = await place.container()
    code = "a = await get_weather(location='a')\nb = await get_weather(location='b')\nprint(a, b)"
    run = await container.start(python(code), [WEATHER])
    first = await waits(run)

    def answer_first() -> None:
        run.answer(ids(first)[0], "A", False)

    answer_first()
    second = await waits(run, after=ids(first))
    # The client did not get that, and sends the same again: while the code waits, and when it has ended.
    answer_first()
    assert container.run_of(ids(first)) is run
    assert await waits(run, after=ids(first)) == second
    run.answer(ids(second)[0], "B", False)
    finished = await ends(run, after=ids(second))
    assert content(finished)["stdout"] == "A B\n"
    assert container.run_of(ids(second)) is run
    run.answer(ids(second)[0], "B", False)
    assert await ends(run, after=ids(second)) == finished
    # The code ran once.
    assert await waits(run, after=ids(first)) == second


async def test_two_who_continue_at_once_are_told_the_same(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("print(await get_weather(location='a'))"), [WEATHER])
    first = await waits(run)
    run.answer(ids(first)[0], "A", False)
    gone = asyncio.create_task(run.next(ids(first)))
    both = [asyncio.create_task(ends(run, ids(first))) for _ in range(2)]
    await settle()
    gone.cancel()
    one, other = await asyncio.gather(*both)
    assert one == other


async def test_answers_that_fit_no_call_or_contradict_an_earlier_one_are_refused(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("print(await get_weather(location='a'))"), [WEATHER])
    (call,) = (await waits(run)).calls
    with pytest.raises(AnswerRefused, match="toolu_other"):
        run.answer("toolu_other", "x", False)
    run.answer(call.id, "A", False)
    for text, is_error in (("B", False), ("A", True)):
        with pytest.raises(AnswerRefused, match="another result") as refused:
            run.answer(call.id, text, is_error)
        assert refused.value.status == 400
    assert content(await ends(run))["stdout"] == "A\n"
    assert container.run_of(["toolu_other"]) is None
    assert container.run_of([]) is None


async def test_a_call_that_nobody_answers_is_a_timeout_in_the_code(tmp_path: Path) -> None:
    async with a_place(tmp_path, quick(call_seconds=0.5)) as place:
        container = await place.container()
        run = await container.start(python("await get_weather(location='SF')"), [WEATHER])
        first = await waits(run)
        # Nobody asks meanwhile; the outcome waits for whoever comes.
        await until(lambda: run.ended)
        assert container.pending is run
        finished = await ends(run)
        expected = "TimeoutError: Calling tool ['get_weather'] timed out (no response after 0.5s).\n"
        assert content(finished)["stderr"].endswith(expected)
        assert content(finished)["return_code"] == 1
        # An answer that comes too late is no error, and changes nothing.
        run.answer(ids(first)[0], "late", False)
        assert await ends(run, after=ids(first)) == finished


async def test_code_can_live_with_a_timeout(tmp_path: Path) -> None:
    async with a_place(tmp_path, quick(call_seconds=1.0)) as place:
        container = await place.container()
        code = (
            "try:\n    await get_weather(location='a')\nexcept TimeoutError as error:\n    print(error)\n"
            "print(await get_weather(location='b'))"
        )
        run = await container.start(python(code), [WEATHER])
        first = await waits(run)
        await until(lambda: run.calls and run.calls != list(first.calls))
        second = await waits(run)
        run.answer(ids(second)[0], "B", False)
        stdout = content(await ends(run))["stdout"]
        assert stdout == "Calling tool ['get_weather'] timed out (no response after 1s).\nB\n"


@pytest.mark.deep("restarts")
async def test_waiting_for_the_client_does_not_count_as_running(tmp_path: Path) -> None:
    async with a_place(tmp_path, quick(cell_seconds=0.5, call_seconds=1.0)) as place:
        container = await place.container()
        code = "try:\n    await get_weather(location='a')\nexcept TimeoutError:\n    print('went on')\n"
        run = await container.start(python(code), [WEATHER])
        first = await waits(run)
        # The call alone took longer than the cell may run.
        await until(lambda: run.ended)
        finished = await ends(run, after=ids(first))
        assert (content(finished)["stdout"], content(finished)["return_code"]) == ("went on\n", 0)
        run = await container.start(python(code + "while True: pass"), [WEATHER])
        run.answer((await waits(run)).calls[0].id, "A", False)
        assert "ran for more than 0.5 seconds" in content(await ends(run))["stderr"]


async def test_a_container_that_waits_takes_no_other_cell_and_no_copy(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("print(await get_weather(location='a'))"), [WEATHER])
    (call,) = (await waits(run)).calls
    with pytest.raises(ContainerBusy, match=call.id) as refused:
        await container.start(bash("echo 1"))
    assert refused.value.status == 400
    with pytest.raises(ContainerBusy):
        await place.containers.fork(ALICE, container.id, 1)
    described = await place.containers.describe(ALICE, container.id)
    assert (described["state"], described["names"]) == ("waiting", None)
    assert described["pending_calls"] == [{"id": call.id, "name": "get_weather", "input": {"location": "a"}}]
    await asyncio.wait_for(run.abandon(), 60)
    assert container.pending is run
    assert content(await ends(run))["return_code"] != 0
    assert content(await carried_out(container, bash("echo 1")))["stdout"] == "1\n"


async def test_deleting_a_container_ends_what_waits_in_it(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("print(await get_weather(location='a'))"), [WEATHER])
    await waits(run)
    await asyncio.wait_for(place.containers.delete(ALICE, container.id), 60)
    assert run.ended
    assert run.calls == []


async def test_tools_are_those_of_the_request(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("print(await look_up({'a': [1]}))"), [WEATHER, ANYTHING])
    (call,) = (await waits(run)).calls
    assert (call.name, dict(call.input)) == ("look-up", {"a": [1]})
    run.answer(call.id, "found", False)
    await ends(run)
    without = await carried_out(container, python("'get_weather' in dir(), 'look_up' in dir()"))
    assert content(without)["stdout"] == "(False, False)\n"


async def test_arguments_that_do_not_fit_never_reach_the_client(place: Place) -> None:
    container = await place.container()
    failed = await carried_out(container, python("await get_weather({'location': 7})"), [WEATHER])
    assert content(failed)["return_code"] == 1
    assert "get_weather" in content(failed)["stderr"]


async def test_tools_that_no_sandbox_can_be_given_are_a_clear_refusal(place: Place) -> None:
    container = await place.container()
    same = [ClientTool("look-up", "", {}), ClientTool("look_up", "", {})]
    with pytest.raises(ApiError, match="same function") as refused:
        await container.start(python("1"), same)
    assert refused.value.status == 400
    assert container.pending is None
    assert content(await carried_out(container, python("1")))["stdout"] == "1\n"


async def test_a_shell_that_is_given_no_tools_has_no_commands(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("1"), [WEATHER])
    failed = await carried_out(container, bash("get_weather --location SF"))
    assert content(failed)["return_code"] == 127
    assert "get_weather: command not found" in content(failed)["stderr"]


@pytest.mark.deep("restarts")
async def test_commands_that_a_shell_runs_at_once_are_told_at_once(tmp_path: Path) -> None:
    # So long that two programs of a busy machine have begun.
    async with a_place(tmp_path, quick(gather_commands_seconds=2.0, gather_at_most_seconds=30.0)) as place:
        container = await place.container()
        script = "for place in a b; do (get_weather --location $place > $place) & done; wait; cat a b"
        run = await container.start(bash(script), [WEATHER])
        waiting = await waits(run)
        assert sorted(str(call.input["location"]) for call in waiting.calls) == ["a", "b"]
        for call in waiting.calls:
            run.answer(call.id, f"fog in {call.input['location']}", False)
        assert content(await ends(run))["stdout"] == "fog in a\nfog in b\n"


async def test_a_copy_calls_as_itself(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 1"), [WEATHER])
    (child,) = await place.containers.fork(ALICE, container.id, 1)
    code = python("print(x, await get_weather(location='a'))")
    ours, theirs = await container.start(code, [WEATHER]), await child.start(code, [WEATHER])
    (first,), (second,) = (await waits(ours)).calls, (await waits(theirs)).calls
    assert first.id != second.id
    theirs.answer(second.id, "theirs", False)
    assert content(await ends(theirs))["stdout"] == "1 theirs\n"
    ours.answer(first.id, "ours", False)
    assert content(await ends(ours))["stdout"] == "1 ours\n"


async def test_tools_work_after_freezing(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 1"), [WEATHER])
    place.clock.now += 300
    await place.containers.tend()
    assert container.state == "frozen"
    run = await container.start(python("print(x, await get_weather(location='a'))"), [WEATHER])
    run.answer((await waits(run)).calls[0].id, "A", False)
    assert content(await ends(run))["stdout"] == "1 A\n"


async def test_a_container_that_waits_is_not_frozen_before_its_client_had_time(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("print(await get_weather(location='a'))"), [WEATHER])
    (call,) = (await waits(run)).calls
    place.clock.now += 400
    await place.containers.tend()
    assert container.state == "waiting"
    run.answer(call.id, "A", False)
    assert content(await ends(run))["stdout"] == "A\n"


async def test_calls_of_threads_that_come_while_the_client_works_are_told_next(place: Place) -> None:
    container = await place.container()
    code = (
        "import threading, os, time\n"
        "def later():\n"
        "    while not os.path.exists('/tmp/inputs/go'): time.sleep(0.005)\n"
        "    got.append(get_weather(location='thread'))\n"
        "got = []\n"
        "thread = threading.Thread(target=later); thread.start()\n"
        "got.append(get_weather(location='main'))\n"
        "thread.join(); print(sorted(got))"
    )
    run = await container.start(python(code), [WEATHER])
    first = await waits(run)
    assert [call.input["location"] for call in first.calls] == ["main"]
    # An upload reaches the sandbox while its code waits.
    await container.upload([(await place.files.add(ALICE, "go", None, pieces())).id])
    await until(lambda: len(run.calls) == 2)
    assert await waits(run) == first
    run.answer(first.calls[0].id, "M", False)
    second = await waits(run, after=ids(first))
    assert [call.input["location"] for call in second.calls] == ["thread"]
    run.answer(second.calls[0].id, "T", False)
    assert content(await ends(run))["stdout"] == "['M', 'T']\n"


@pytest.mark.deep("restarts")
async def test_a_hundred_sequential_calls_in_one_cell(place: Place) -> None:
    container = await place.container()
    code = "total = 0\nfor n in range(100):\n    total += int(await get_weather(location=str(n)))\nprint(total)"
    run = await container.start(python(code), [WEATHER])
    outcome = await come_next(run)
    while isinstance(outcome, Waiting):
        for call in outcome.calls:
            run.answer(call.id, str(call.input["location"]), False)
        outcome = await come_next(run)
    assert content(outcome)["stdout"] == "4950\n"


async def test_arguments_that_no_client_could_send_back_are_refused_in_the_code(tmp_path: Path) -> None:
    code = (
        "import asyncio\n"
        "async def ask():\n"
        "    try:\n"
        "        return await get_weather(location='x' * 3_000_000)\n"
        "    except Exception as error:\n"
        "        await get_weather(location='refused')\n"
        "        return str(error)[:30]\n"
        "print(sorted(await asyncio.gather(ask(), ask())))\n"
    )
    async with a_place(tmp_path) as place:
        container = await place.container()
        run = await container.start(python(code), [WEATHER])
        # The client works on the first call until the second was refused: one after the other both would be taken.
        await until(lambda: len(run.calls) == 2)
        large, small = sorted(run.calls, key=lambda call: len(str(call.input["location"])), reverse=True)
        assert small.input["location"] == "refused"
        run.answer(large.id, "rain", False)
        run.answer(small.id, "noted", False)
        finished = await ends(run, [large.id, small.id])
        assert content(finished)["stdout"] == "['rain', 'the arguments of the waiting c']\n"
