"""Histories of clients as an upstream must see them."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.requests.history import OpenCalls, open_calls
from ramet.doors.gateway.upstream.past_cells import retell
from ramet.doors.gateway.upstream.translation import translate


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def cell(name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "server_tool_use",
        "id": f"srvtoolu_{name}",
        "name": "code_execution",
        "input": {"code": name},
        **more,
    }


def result(name: str, stdout: str = "", **more: Any) -> dict[str, Any]:
    content = {"type": "code_execution_result", "stdout": stdout, "stderr": "", "return_code": 0, "content": []}
    return {"type": "code_execution_tool_result", "tool_use_id": f"srvtoolu_{name}", "content": content, **more}


def call(name: str, of: str | None = None) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"toolu_{name}", "name": "tool", "input": {}}
    return (
        block if of is None else {**block, "caller": {"type": "code_execution_20260120", "tool_id": f"srvtoolu_{of}"}}
    )


def answer(name: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{name}", "content": f"of {name}"}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def use(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": "code_execution", "input": {"code": name}}


def told(name: str, words: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{name}", "content": words}


def translated(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return translate(messages, lambda one, block: retell(one, block, lambda ids: ()), lambda file_id: f"file {file_id}")


QUESTION = {"role": "user", "content": "question"}


def test_what_is_ordinary_stays_as_it_is() -> None:
    messages = [
        QUESTION,
        assistant(text("a"), call("x")),
        user(answer("x"), text("b")),
        {"role": "system", "content": "now"},
        {"role": "assistant", "content": "c"},
    ]
    assert translated(*messages) == messages


def test_a_cell_becomes_a_call_and_its_result_a_message_of_the_user() -> None:
    assert translated(QUESTION, assistant(text("a"), cell("1"), result("1", "one\n"), text("b"))) == [
        QUESTION,
        assistant(text("a"), use("1")),
        user(told("1", "one")),
        assistant(text("b")),
    ]


def test_cells_of_one_sample_stay_together_and_those_of_two_apart() -> None:
    together = translated(QUESTION, assistant(cell("1"), cell("2"), result("1", "one"), result("2", "two")))
    assert together == [QUESTION, assistant(use("1"), use("2")), user(told("1", "one"), told("2", "two"))]
    apart = translated(QUESTION, assistant(cell("1"), result("1", "one"), cell("2"), result("2", "two")))
    assert apart == [
        QUESTION,
        assistant(use("1")),
        user(told("1", "one")),
        assistant(use("2")),
        user(told("2", "two")),
    ]


def test_what_happened_inside_the_code_is_not_told() -> None:
    history = [
        QUESTION,
        assistant(text("a"), cell("1"), call("p", of="1"), call("q", of="1")),
        user(answer("p"), answer("q")),
        assistant(call("r", of="1")),
        user(answer("r")),
        assistant(result("1", "one"), text("b")),
        user(text("c")),
    ]
    assert translated(*history) == [
        QUESTION,
        assistant(text("a"), use("1")),
        user(told("1", "one")),
        assistant(text("b")),
        user(text("c")),
    ]


def test_a_cell_that_waited_beside_a_clients_tool_is_answered_beside_it() -> None:
    history = [
        QUESTION,
        assistant(cell("1"), {**call("x"), "caller": {"type": "direct"}}),
        user(answer("x")),
        assistant(result("1", "one"), text("b")),
    ]
    assert translated(*history) == [
        QUESTION,
        assistant(use("1"), call("x")),
        user(told("1", "one"), answer("x")),
        assistant(text("b")),
    ]


def test_a_cell_that_never_ran_is_told_as_such() -> None:
    never = {**told("1", "This call was not executed."), "is_error": True}
    assert translated(QUESTION, assistant(text("a"), cell("1")), user(text("go on"))) == [
        QUESTION,
        assistant(text("a"), use("1")),
        user(never, text("go on")),
    ]


def test_two_messages_of_one_role_become_one_with_results_first() -> None:
    paused = assistant(cell("1"), result("1", "one"))
    assert translated(QUESTION, user(text("more")), paused, assistant(text("b")), assistant(text("c"))) == [
        user(text("question"), text("more")),
        assistant(use("1")),
        user(told("1", "one")),
        assistant(text("b"), text("c")),
    ]


def test_uploads_are_told_as_text_and_marks_for_the_cache_stay() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    upload = {"type": "container_upload", "file_id": "file_1", **mark}
    assert translated(user(upload), assistant(cell("1"), result("1", "one", **mark))) == [
        user({**text("file file_1"), **mark}),
        assistant(use("1")),
        user({**told("1", "one"), **mark}),
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("view", {"type": "x_view_result", "content": "a\nb", "start_line": 3}, "     3\ta\n     4\tb"),
        ("view", {"type": "x_view_result", "content": "", "start_line": 1}, "/f is empty"),
        ("create", {"type": "x_create_result", "is_file_update": True}, "/f was overwritten"),
        ("str_replace", {"type": "x_str_replace_result", "lines": ["-a", "+b"]}, "/f was changed:\n-a\n+b"),
        ("view", {"type": "x_tool_result_error", "error_code": "unavailable"}, "error: unavailable"),
        (
            "run",
            {"type": "x_result", "stdout": "out\n", "stderr": "err\n", "return_code": 2},
            "out\nstderr:\nerr\nreturn code: 2",
        ),
        ("run", {"type": "x_result"}, "(no output)"),
        ("run", None, "(no output)"),
    ],
)
def test_results_of_earlier_requests_are_told_from_their_blocks(name: str, content: Any, words: str) -> None:
    given = {"input": {"command": name, "path": "/f"}}
    assert retell(given, {"content": content}, lambda ids: ()) == words


# What is still open


def test_nothing_is_open_in_an_ordinary_history() -> None:
    assert open_calls([]) == OpenCalls()
    assert open_calls([QUESTION, assistant(cell("1"), result("1")), user(text("x"))]) == OpenCalls()
    assert open_calls([QUESTION, assistant(cell("1"), result("1"), call("x")), user(answer("x"))]) == OpenCalls()


def test_code_that_waits_is_open_with_its_answers() -> None:
    history = [QUESTION, assistant(cell("1"), cell("2"), call("p", of="1")), user(answer("p"))]
    found = open_calls(history)
    assert [one["id"] for one in found.cells] == ["srvtoolu_1", "srvtoolu_2"]
    assert (found.answered_ids, found.waiting_cell) == (frozenset(("toolu_p",)), "srvtoolu_1")
    again = open_calls([*history, assistant(call("q", of="1")), user(answer("q"))])
    assert (again.answered_ids, again.waiting_cell) == (frozenset(("toolu_q",)), "srvtoolu_1")


def test_a_cell_beside_a_clients_tool_is_open_without_answers() -> None:
    found = open_calls([QUESTION, assistant(cell("1"), call("x")), user(answer("x"))])
    assert ([one["id"] for one in found.cells], found.answers) == (["srvtoolu_1"], ())


def test_a_cell_that_was_cut_off_is_not_open_once_the_user_has_spoken() -> None:
    assert open_calls([QUESTION, assistant(cell("1")), user(text("go on"))]) == OpenCalls()


def test_what_is_said_of_tools_on_the_way_is_no_part_of_the_exchange() -> None:
    history = [QUESTION, assistant(cell("1"), call("p", of="1")), user(answer("p")), {"role": "system", "content": []}]
    assert open_calls(history).waiting_cell == "srvtoolu_1"


def test_answers_may_come_in_two_messages() -> None:
    history = [
        QUESTION,
        assistant(cell("1"), call("p", of="1"), call("q", of="1")),
        user(answer("p")),
        user(answer("q")),
    ]
    assert open_calls(history).answered_ids == {"toolu_p", "toolu_q"}


def test_a_call_of_code_without_its_answer_is_refused_in_the_words_of_the_api() -> None:
    with pytest.raises(ApiError) as caught:
        open_calls([QUESTION, assistant(cell("1"), call("p", of="1"), call("q", of="1")), user(answer("p"))])
    assert caught.value.status == 400
    assert caught.value.message.startswith(
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_q."
    )
