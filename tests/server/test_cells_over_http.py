"""Cells as plain HTTP requests, in the formats there are."""

from __future__ import annotations

import base64
import json
import threading

import pytest

from tests.server.talking import Client


def _told(events: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(event["type"], event["data"]) for event in events]


# Lines


def test_a_line_of_output_is_an_event(client: Client, sandbox_id: str) -> None:
    answer = client.execute(sandbox_id, "import sys\nprint('a\\n\\nb')\nprint('c', file=sys.stderr, end='')")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert sorted(_told(answer.events)) == sorted(
        [("stdout", "a"), ("stdout", ""), ("stdout", "b"), ("stderr", "c"), ("exit", 0)]
    )
    assert [event["seq"] for event in answer.events] == [0, 1, 2, 3, 4]
    assert answer.events[-1]["type"] == "exit"


def test_only_line_feeds_cut_and_everything_is_ascii(client: Client, sandbox_id: str) -> None:
    answer = client.execute(sandbox_id, r"print('one\u2028two\x85three\u2029four\r five \U0001f600 \0')")
    assert answer.body.isascii()
    assert _told(answer.events)[0] == ("stdout", "one\u2028two\x85three\u2029four\r five \U0001f600 \0")


def test_bytes_that_are_no_text_are_replaced_and_none_across_a_border(client: Client, sandbox_id: str) -> None:
    code = "import os, time\nfor b in (b'\\xe2', b'\\x82', b'\\xac\\n', b'\\xff\\n'): os.write(1, b), time.sleep(0.01)"
    assert _told(client.execute(sandbox_id, code).events) == [("stdout", "€"), ("stdout", "\ufffd"), ("exit", 0)]


def test_a_long_line_is_one_event(client: Client, sandbox_id: str) -> None:
    assert client.stdout(sandbox_id, "print('x' * 3_000_000)") == "x" * 3_000_000


def test_an_exception_is_on_stderr_and_the_exit_code_is_one(client: Client, sandbox_id: str) -> None:
    events = client.execute(sandbox_id, "1/0").events
    assert events[-1]["data"] == 1
    assert ("stderr", "ZeroDivisionError: division by zero") in _told(events)


def test_the_value_of_a_cell_is_not_printed(client: Client, sandbox_id: str) -> None:
    assert _told(client.execute(sandbox_id, "40 + 2").events) == [("exit", 0)]


def test_bash(client: Client, sandbox_id: str) -> None:
    events = client.execute(sandbox_id, "echo hello; exit 3", language="bash").events
    assert _told(events) == [("stdout", "hello"), ("exit", 3)]


def test_a_sandbox_that_dies_ends_its_stream_with_words_and_an_exit(client: Client, sandbox_id: str) -> None:
    events = client.execute(sandbox_id, "import os; os._exit(7)").events
    assert (events[-1]["type"], events[-1]["data"]) == ("exit", 7)
    assert any(event["type"] == "stderr" and "Python ended" in event["data"] for event in events)


def test_much_output_arrives_whole(client: Client, sandbox_id: str) -> None:
    printed = client.stdout(sandbox_id, "for i in range(200_000): print(i)")
    assert printed.split("\n") == [str(number) for number in range(200_000)]


# Chunks and JSON


def test_chunks_are_exact_and_carry_results(client: Client, sandbox_id: str) -> None:
    code = "print('a', end='')\nfrom IPython.display import display, Image\ndisplay(Image(b'\\x89PNG'))\n'value'"
    events = client.execute(sandbox_id, code, format="chunks").events
    assert ("stdout", "a") in _told(events)
    shown = [event for event in events if event["type"] == "result"]
    assert shown[0]["what"] == "display"
    assert shown[0]["data"]["image/png"] == {"base64": base64.b64encode(b"\x89PNG").decode()}
    assert shown[1]["data"]["text/plain"] == "'value'"
    assert events[-1]["type"] == "exit"
    assert events[-1]["result"]["state"] == "kept"


def test_json_is_one_result(client: Client, sandbox_id: str) -> None:
    answer = client.execute(sandbox_id, "print('out')\n{'a': 1}", format="json")
    result = answer.json
    assert (result["stdout"], result["value"], result["exit_code"]) == ("out\n", "{'a': 1}", 0)
    assert result["execution_id"] == answer.headers["ramet-execution"]


def test_a_timeout_interrupts_and_the_state_is_kept(client: Client, sandbox_id: str) -> None:
    client.execute(sandbox_id, "witness = 41")
    result = client.execute(sandbox_id, "while True: pass", format="json", timeout=0.1).json
    assert (result["interrupted"], result["cause"], result["state"]) == (True, "timeout", "kept")
    assert client.stdout(sandbox_id, "print(witness + 1)") == "42"


def test_an_interrupt_from_another_connection(client: Client, sandbox_id: str) -> None:
    other = Client(client.port)
    response = client.send("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": "print('here')\nwhile True: pass"})
    assert json.loads(response.readline())["data"] == "here"
    assert other.ask("POST", f"/v1/sandboxes/{sandbox_id}/interrupt").json == {"interrupted": True}
    last = json.loads(response.read().splitlines()[-1])
    assert last["type"] == "exit"
    assert other.ask("POST", f"/v1/sandboxes/{sandbox_id}/interrupt").json == {"interrupted": False}
    other.close()


@pytest.mark.parametrize("code", ["a\0b", "x = '\ud800'"])
def test_characters_that_no_code_has_are_a_result(client: Client, sandbox_id: str, code: str) -> None:
    result = client.execute(sandbox_id, code, format="json").json
    assert (result["exit_code"], result["error"]["name"]) == (1, "SyntaxError")


def test_a_clear_is_an_event_of_chunks_and_takes_away_what_a_fetched_result_would_hold(
    client: Client, sandbox_id: str
) -> None:
    code = "from IPython.display import clear_output\nprint('a')\nclear_output()\nprint('b')\nclear_output(wait=True)"
    answer = client.execute(sandbox_id, code, format="chunks")
    told = [(event["type"], event["data"], event.get("wait")) for event in answer.events]
    assert told[:4] == [("stdout", "a\n", None), ("clear", None, False), ("stdout", "b\n", None), ("clear", None, True)]
    lines = client.execute(sandbox_id, code).events
    assert [event["type"] for event in lines] == ["stdout", "stdout", "exit"]
    fetched = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/executions/{answer.headers['ramet-execution']}").json
    assert fetched["result"]["stdout"] == "b\n"


# What was not asked well


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "code is missing; it must be a string"),
        ({"code": 1}, "code must be a string, got 1"),
        ({"code": "1", "language": "ruby"}, "language must be 'python' or 'bash', got 'ruby'"),
        ({"code": "1", "language": 3}, "language must be a string, got 3"),
        ({"code": "1", "timeout": -1}, "timeout must be more than 0 seconds, got -1"),
        ({"code": "1", "timeout": "1"}, "timeout must be a finite number below 2**63, got a string"),
        ({"code": "1", "format": "xml"}, "format must be 'lines' or 'chunks' or 'json', got 'xml'"),
        ({"code": "1", "on_disconnect": "explode"}, "on_disconnect must be 'keep' or 'interrupt', got 'explode'"),
        ({"code": "1", "execution_id": "mine"}, "execution must be exe_ and 32 random hexadecimal digits, got 'mine'"),
        ({"code": "1", "stdin": "x"}, "unknown field 'stdin'"),
        ([], "the body must be a JSON object, got an array"),
    ],
)
def test_a_mistake_is_told_by_its_field(client: Client, sandbox_id: str, body: object, problem: str) -> None:
    answer = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/exec", body)
    assert answer.status == 400
    assert answer.json["code"] == "invalid_argument"
    assert answer.error.startswith(problem)


@pytest.mark.parametrize("sandbox", ["sbx_" + "0" * 32, "x", "sbx_%00", "..", "sbx_" + "0" * 5000])
@pytest.mark.parametrize("format_name", ["lines", "chunks", "json"])
def test_an_unknown_sandbox_is_not_found(client: Client, sandbox: str, format_name: str) -> None:
    answer = client.execute(sandbox, "1", format=format_name)
    assert answer.status == 404
    assert answer.error == "sandbox not found"


# Executions


def test_a_result_can_be_fetched_by_its_id(client: Client, sandbox_id: str) -> None:
    execution = client.execute(sandbox_id, "print('out')\n42", format="chunks").headers["ramet-execution"]
    answer = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/executions/{execution}")
    assert answer.json["state"] == "finished"
    assert (answer.json["result"]["stdout"], answer.json["result"]["value"]) == ("out\n", "42")


def test_one_that_runs_is_told_waited_for_and_cancelled(client: Client, sandbox_id: str) -> None:
    execution = "exe_" + "7" * 32
    path = f"/v1/sandboxes/{sandbox_id}/executions/{execution}"
    running = Client(client.port)
    response = running.send(
        "POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": "print(1)\nwhile True: pass", "execution_id": execution}
    )
    response.readline()
    assert client.ask("GET", path).json["state"] == "running"
    waiter = Client(client.port)
    waited: list[str] = []
    thread = threading.Thread(target=lambda: waited.append(waiter.ask("GET", f"{path}?wait=true").json["state"]))
    thread.start()
    assert client.ask("POST", f"{path}/cancel").json == {"cancelled": True}
    thread.join(60)
    assert waited == ["finished"]
    assert client.ask("POST", f"{path}/cancel").json == {"cancelled": False}
    for one in (running, waiter):
        one.close()


def test_an_id_cannot_be_used_twice(client: Client, sandbox_id: str) -> None:
    execution = "exe_" + "8" * 32
    assert client.execute(sandbox_id, "1", execution_id=execution).status == 200
    again = client.execute(sandbox_id, "1", execution_id=execution)
    assert again.status == 400
    assert "execution" in again.error


@pytest.mark.parametrize("execution", ["exe_" + "9" * 32, "nonsense", "%00"])
def test_an_unknown_execution_is_not_found(client: Client, sandbox_id: str, execution: str) -> None:
    for method, more in (("GET", ""), ("POST", "/cancel")):
        answer = client.ask(method, f"/v1/sandboxes/{sandbox_id}/executions/{execution}{more}")
        assert (answer.status, answer.json["code"]) == (404, "execution_unknown")


# Replay


def test_the_last_output_can_be_read_again(client: Client, sandbox_id: str) -> None:
    client.execute(sandbox_id, "print('one')")
    client.execute(sandbox_id, "print('two', end='')\n1/0")
    told = _told(client.ask("GET", f"/v1/sandboxes/{sandbox_id}/replay").events)
    assert told[:2] == [("stdout", "one"), ("exit", 0)]
    assert ("stdout", "two") in told[2:]
    assert told[-1] == ("exit", 1)


def test_a_replay_has_the_last_thousand_events(client: Client, sandbox_id: str) -> None:
    client.execute(sandbox_id, "for i in range(5000): print(i)")
    events = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/replay").events
    assert len(events) == 1000
    assert _told(events)[-2:] == [("stdout", "4999"), ("exit", 0)]
    assert [event["seq"] for event in events] == list(range(1000))


def test_a_replay_of_nothing_is_empty(client: Client, sandbox_id: str) -> None:
    answer = client.ask("GET", f"/v1/sandboxes/{sandbox_id}/replay")
    assert (answer.status, answer.body) == (200, b"")


# Several at once


def test_a_reader_that_is_slow_delays_nobody_else(client: Client, sandbox_id: str) -> None:
    slow = Client(client.port)
    response = slow.send("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": "while True: print('x' * 1000)"})
    response.readline()
    other_id = client.create()
    assert [client.stdout(other_id, f"print({number})") for number in range(50)] == [str(n) for n in range(50)]
    slow.close()
    response.close()
    client.ask("POST", f"/v1/sandboxes/{sandbox_id}/interrupt")
