"""Turns with code execution, as the published client sees them."""

from __future__ import annotations

from datetime import UTC, datetime

import anthropic

from tests.gateway.clients import CODE_TOOL, KEY, Asking, results, said, shape, texts, user, weather_tool
from tests.gateway.gateways import Gateway
from tests.gateway.upstreams import ScriptedUpstream, bash, editor, python, says, tool_use


def test_an_answer_without_code_passes_through(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says("Hello."))
    answer = ask("hi", tools=())
    assert texts(answer) == "Hello."
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("end_turn", 10, 5)
    assert answer.container is None
    assert upstream.samples[0].messages == [{"role": "user", "content": "hi"}]
    assert "tools" not in upstream.samples[0].body


def test_a_cell_runs_and_the_model_reads_what_it_printed(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says("I compute.", python("print(6 * 7)")), says("It is 42."))
    answer = ask("what is 6 * 7?")
    assert shape(answer) == ["text", "server_tool_use", "code_execution_tool_result", "text"]
    use, result = answer.content[1], answer.content[2]
    assert use.type == "server_tool_use"
    assert result.type == "code_execution_tool_result"
    assert (use.name, use.input, use.id[:9]) == ("code_execution", {"code": "print(6 * 7)"}, "srvtoolu_")
    assert use.caller is not None
    assert use.caller.type == "direct"
    assert result.tool_use_id == use.id
    assert result.content.to_dict() == {
        "type": "code_execution_result",
        "stdout": "42\n",
        "stderr": "",
        "return_code": 0,
        "content": [],
    }
    assert answer.stop_reason == "end_turn"
    assert answer.usage.input_tokens == 20
    assert answer.usage.output_tokens == 10
    assert answer.usage.server_tool_use is not None
    assert answer.usage.server_tool_use.web_search_requests == 0
    assert answer.container.id.startswith("container_")
    assert answer.container.expires_at > datetime.now(UTC)

    first, second = upstream.samples
    assert first.tool_names == ["code_execution", "bash_code_execution", "text_editor_code_execution"]
    assert all("type" not in tool for tool in first.body["tools"])
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
    called = second.messages[1]["content"][1]
    assert called["type"] == "tool_use"
    told = second.messages[2]["content"][0]
    assert told == {"type": "tool_result", "tool_use_id": called["id"], "content": "42"}


def test_bash_and_the_editor_have_blocks_of_their_own(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(
        says(editor(command="create", path="/tmp/note.txt", file_text="one\n")),
        says(editor(command="str_replace", path="/tmp/note.txt", old_str="one", new_str="two")),
        says(editor(command="view", path="/tmp/note.txt"), bash("cat /tmp/note.txt; echo oops >&2; exit 3")),
        says("done"),
    )
    answer = ask("edit")
    assert shape(answer) == [
        *["server_tool_use", "text_editor_code_execution_tool_result"] * 2,
        *["server_tool_use"] * 2,
        "text_editor_code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text",
    ]
    contents = [block.to_dict()["content"] for block in answer.content if block.type.endswith("_tool_result")]
    created, replaced, viewed, ran = contents
    assert created == {"type": "text_editor_code_execution_create_result", "is_file_update": False}
    assert replaced["lines"] == ["-one", "+two"]
    assert viewed["content"].strip() == "two"
    assert ran == {
        "type": "bash_code_execution_result",
        "stdout": "two\n",
        "stderr": "oops\n",
        "return_code": 3,
        "content": [],
    }
    assert answer.usage.output_tokens == 20


def test_square_roots_in_turn_one_their_mean_in_turn_two(upstream: ScriptedUpstream, ask: Asking) -> None:
    """A conversation of two turns, whose second finds the variables of the first."""
    upstream.will(
        says(python("import math\nroots = [math.sqrt(n) for n in (1, 4, 9, 16)]\nprint(roots)")),
        says("The roots are 1, 2, 3 and 4."),
        says(python("print(sum(roots) / len(roots))")),
        says("Their mean is 2.5."),
    )
    question = user("What are the square roots of 1, 4, 9 and 16?")
    first = ask([question])
    history = [question, said(first), user("And their mean?")]
    second = ask(history, container=first.container.id)
    assert second.content[1].to_dict()["content"]["stdout"] == "2.5\n"
    assert texts(second) == "Their mean is 2.5."
    assert second.container.id == first.container.id
    assert second.container.expires_at >= first.container.expires_at

    roles = [message["role"] for message in upstream.samples[3].messages]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant", "user"]
    # What the model reads of the first turn is word for word what it read while it happened: caches live from that.
    assert upstream.samples[3].messages[:3] == upstream.samples[1].messages


def test_the_same_container_in_another_conversation(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("kept = 'here'")), says("ok"), says(python("print(kept)")), says("ok"))
    first = ask("remember")
    second = ask("recall", container={"id": first.container.id})
    assert second.content[1].to_dict()["content"]["stdout"] == "here\n"


def test_a_container_that_is_named_but_not_used_comes_back(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("1")), says("ok"), says("no need for code"))
    first = ask("begin")
    second = ask("thanks", container=first.container.id)
    assert second.container.id == first.container.id


def test_code_that_raises_is_an_ordinary_result(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("1 / 0")), says("It failed."))
    answer = ask("fail")
    content = answer.content[1].to_dict()["content"]
    assert content["return_code"] != 0
    assert "ZeroDivisionError" in content["stderr"]
    assert "ZeroDivisionError" in upstream.samples[1].messages[-1]["content"][0]["content"]


def test_thinking_stays_in_front_of_what_it_led_to(upstream: ScriptedUpstream, ask: Asking) -> None:
    thought = {"type": "thinking", "thinking": "I should compute.", "signature": "c2lnbmF0dXJl"}
    upstream.will(says(thought, python("print(1)")), says("done"))
    answer = ask("think")
    assert shape(answer) == ["thinking", "server_tool_use", "code_execution_tool_result", "text"]
    assert answer.content[0].to_dict() == thought
    assert upstream.samples[1].messages[1]["content"][0] == thought


def test_ten_samples_then_the_turn_pauses_and_goes_on_when_it_is_sent_back(
    upstream: ScriptedUpstream, ask: Asking
) -> None:
    upstream.will(*[says(python(f"print({n})")) for n in range(10)], says("done"))
    question = user("count")
    paused = ask([question])
    assert paused.stop_reason == "pause_turn"
    assert shape(paused) == ["server_tool_use", "code_execution_tool_result"] * 10
    resumed = ask([question, said(paused)], container=paused.container.id)
    assert (resumed.stop_reason, texts(resumed)) == ("end_turn", "done")
    assert len(upstream.samples[-1].messages) == 21


def test_other_stop_reasons_are_the_upstreams(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says("half a sen", stop_reason="max_tokens"), says("no", stop_reason="refusal"))
    assert ask("write").stop_reason == "max_tokens"
    assert ask("write").stop_reason == "refusal"


def test_a_call_that_was_cut_off_is_not_carried_out_later(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("print('half"), stop_reason="max_tokens"), says("I begin anew."))
    question = user("write")
    cut = ask([question])
    assert (cut.stop_reason, shape(cut)) == ("max_tokens", ["server_tool_use"])
    answer = ask([question, said(cut), user("go on")])
    assert texts(answer) == "I begin anew."
    told = upstream.samples[1].messages[2]["content"][0]
    assert (told["content"], told["is_error"]) == ("This call was not executed.", True)


def test_a_call_can_be_forced_only_at_the_beginning_of_a_turn(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(python("1")), says("done"))
    ask("go", tools=[CODE_TOOL], tool_choice={"type": "tool", "name": "code_execution"})
    assert [one.body["tool_choice"] for one in upstream.samples] == [
        {"type": "tool", "name": "code_execution"},
        {"type": "auto"},
    ]


def test_every_block_is_one_that_the_published_types_allow(upstream: ScriptedUpstream, gateway: Gateway) -> None:
    """The client checks answers against its types if it is told to, which it is not by default."""
    upstream.will(
        says(
            "All at once.",
            python("print(1); open(__import__('os').environ['OUTPUT_DIR'] + '/x', 'w').close()"),
            python("raise ValueError"),
            tool_use("code_execution", wrong=1),
            bash('echo 1 > "$OUTPUT_DIR/y"'),
            editor(command="create", path="/tmp/note.txt", file_text="one\n"),
            editor(command="str_replace", path="/tmp/note.txt", old_str="one", new_str="two"),
            editor(command="view", path="/tmp/note.txt"),
            editor(command="view", path="/tmp/nothing"),
        ),
        says(python("await get_weather(location='A')")),
    )
    with anthropic.Anthropic(
        base_url=gateway.url, api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as client:
        answer = Asking(client, stream=False)([user("go")], [CODE_TOOL, weather_tool()])
        assert answer.stop_reason == "tool_use"
        assert len(answer.content) == 1 + 8 + 8 + 2
        upstream.will(says("done"))
        history = [user("go"), said(answer), results(answer, "rain")]
        last = client.beta.messages.create(
            model="m", max_tokens=9, messages=history, tools=[CODE_TOOL, weather_tool()], container=answer.container.id
        )
        assert [block.type for block in last.content] == ["code_execution_tool_result", "text"]
