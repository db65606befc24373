"""Terminals over HTTP, event by event: what a program prints is there, for who was first and for who comes later."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.server.asking import ANSWER_SECONDS, Caller
from tests.server.running import Server

UNKNOWN = "pty_" + "0" * 16


@pytest.fixture
def caller(shared_server: Server) -> Caller:
    """Without a key, as on loopback."""
    return Caller(shared_server.url)


class Session:
    """A stream of a terminal's events."""

    def __init__(self, caller: Caller, method: str, target: str, body: object = None) -> None:
        self._connection = http.client.HTTPConnection(caller.host, caller.port, timeout=ANSWER_SECONDS)
        self._connection.request(method, target, None if body is None else json.dumps(body))
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        first = self.event()
        assert first["type"] == "pty_ready"
        self.id: str = first["session_id"]
        self.seen = b""

    def event(self) -> dict[str, Any]:
        while True:
            line = self._response.readline()
            assert line, "the stream ended"
            if line.strip():
                event: dict[str, Any] = json.loads(line)
                return event

    def until(self, wanted: bytes) -> bytes:
        """All that was printed so far, once this is in it."""
        while wanted not in self.seen:
            event = self.event()
            assert event["type"] == "pty_data", event
            assert event["seq"] >= 0
            self.seen += base64.b64decode(event["data_b64"])
        return self.seen

    def exit_code(self) -> int:
        while True:
            event = self.event()
            if event["type"] == "pty_exit":
                assert self._response.read().strip() == b""
                return int(event["data"])
            assert event["type"] == "pty_data", event

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def pty(sandbox_id: str) -> str:
    return f"/v1/sandboxes/{sandbox_id}/pty"


Opener = Callable[..., Session]


@pytest.fixture
def opened(caller: Caller, pty: str) -> Iterator[Opener]:
    sessions: list[Session] = []

    def opener(**asked: object) -> Session:
        sessions.append(Session(caller, "POST", pty, asked))
        return sessions[-1]

    yield opener
    for session in sessions:
        session.close()


def typed(caller: Caller, pty: str, session: Session, text: bytes) -> None:
    body = {"data_b64": base64.b64encode(text).decode()}
    assert caller.ask("POST", f"{pty}/{session.id}/input", body).status == 204


def test_a_program_prints_reads_and_ends(caller: Caller, pty: str, opened: Opener) -> None:
    session = opened(shellCmd="read line; echo got:$line; exit 7")
    typed(caller, pty, session, b"hello\n")
    assert b"got:hello" in session.until(b"got:hello")
    assert session.exit_code() == 7


def test_argv_env_cwd_and_size_are_as_asked(opened: Opener) -> None:
    program = "import os,sys; print(os.get_terminal_size(), os.environ['A'], os.getcwd(), sys.argv[1:])"
    session = opened(argv=["python3", "-c", program, "x y"], cols=100, rows=30, env=[["A", "b c"]], cwd="/tmp")
    printed = session.until(b"]").decode()
    assert "columns=100, lines=30" in printed
    assert "b c /tmp ['x y']" in printed
    assert session.exit_code() == 0


def test_bytes_pass_as_they_are(caller: Caller, pty: str, opened: Opener) -> None:
    session = opened(shellCmd="stty raw -echo; echo ready; head -c 4 | od -An -tx1; printf '\\xff\\xc3'")
    session.until(b"ready")
    typed(caller, pty, session, b"\xff\x00\x03\xc3")
    session.until(b"ff 00 03 c3")
    assert b"\xff\xc3" in session.until(b"\xff\xc3")


def test_a_second_client_sees_what_was_printed_and_what_is(caller: Caller, pty: str, opened: Opener) -> None:
    first = opened(shellCmd="echo before; read line; echo after")
    first.until(b"before")
    second = Session(caller, "GET", f"{pty}/{first.id}/attach")
    second.until(b"before")
    typed(caller, pty, first, b"\n")
    for session in (first, second):
        session.until(b"after")
        assert session.exit_code() == 0
    second.close()
    late = Session(caller, "GET", f"{pty}/{first.id}/attach?since=0")
    assert late.until(b"after").startswith(b"before")
    assert late.exit_code() == 0
    late.close()


def test_a_terminal_goes_on_when_its_client_vanishes(caller: Caller, pty: str, opened: Opener) -> None:
    first = opened(shellCmd="echo before; read line; echo after:$line")
    first.until(b"before")
    first.close()
    typed(caller, pty, first, b"x\n")
    second = Session(caller, "GET", f"{pty}/{first.id}/attach")
    second.until(b"after:x")
    assert second.exit_code() == 0
    second.close()


def test_a_window_is_resized(caller: Caller, pty: str, opened: Opener) -> None:
    session = opened(shellCmd="trap 'stty size; exit' WINCH; echo ready; while :; do read -t 1 line; done")
    session.until(b"ready")
    assert caller.ask("POST", f"{pty}/{session.id}/resize", {"cols": 120, "rows": 40}).status == 204
    session.until(b"40 120")


def test_a_terminal_is_killed(caller: Caller, pty: str, opened: Opener) -> None:
    session = opened(shellCmd="echo ready; exec sleep 1000")
    session.until(b"ready")
    assert caller.ask("POST", f"{pty}/{session.id}/kill").status == 204
    assert session.exit_code() > 128


def test_terminals_are_listed_with_their_ends(caller: Caller, pty: str, opened: Opener) -> None:
    ended, living = opened(shellCmd="exit 3"), opened(argv=["cat"])
    ended.exit_code()
    answer = caller.ask("GET", pty)
    rows = {row["pty_id"]: row for row in answer.json}
    assert rows[ended.id]["exit_code"] == 3
    assert rows[living.id]["exit_code"] is None
    assert rows[living.id]["cmd_label"] == "cat"
    assert rows[living.id]["created_at_ms"] > 1_600_000_000_000


def test_a_long_poll_gives_what_is_there_and_waits_for_more(caller: Caller, pty: str, opened: Opener) -> None:
    session = opened(shellCmd="printf 0123456789; read line; printf end; exit 4")
    session.until(b"0123456789")
    target = f"{pty}/{session.id}/read"
    first = caller.ask("POST", target, {"since_seq": 0, "max_bytes": 4, "timeout_ms": 0}).json
    assert (base64.b64decode(first["data_b64"]), first["seq"], first["next_seq"]) == (b"0123", 0, 4)
    second = caller.ask("POST", target, {"since_seq": 4, "timeout_ms": 5000}).json
    assert base64.b64decode(second["data_b64"]) == b"456789"
    nothing = caller.ask("POST", target, {"since_seq": 10, "timeout_ms": 0}).json
    assert nothing == {"data_b64": "", "seq": 10, "next_seq": 10, "exit_code": None}
    typed(caller, pty, session, b"\n")
    said, since, code = b"", 10, None
    while code is None or b"end" not in said:
        more = caller.ask("POST", target, {"since_seq": since, "timeout_ms": 10_000}).json
        said += base64.b64decode(more["data_b64"])
        since, code = more["next_seq"], more["exit_code"]
    assert code == 4


def test_the_end_of_the_sandbox_is_told_to_who_is_attached(caller: Caller) -> None:
    made = caller.sandbox()
    session = Session(caller, "POST", f"/v1/sandboxes/{made}/pty", {"argv": ["cat"]})
    caller.ask("DELETE", f"/v1/sandboxes/{made}")
    while (event := session.event())["type"] == "pty_data":
        pass
    assert event["type"] in ("pty_error", "pty_exit")
    session.close()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"shellCmd": "a", "argv": ["b"]},
        {"shellCmd": ""},
        {"shellCmd": 7},
        {"shellCmd": "a\0b"},
        {"argv": []},
        {"argv": "bash"},
        {"argv": [7]},
        {"argv": [""]},
        {"argv": ["a"], "cols": 0},
        {"argv": ["a"], "rows": 70_000},
        {"argv": ["a"], "cols": 1.5},
        {"argv": ["a"], "env": [["A"]]},
        {"argv": ["a"], "env": [[7, "b"]]},
        {"argv": ["a"], "env": [["A=B", "b"]]},
        {"argv": ["a"], "env": [["A", "\0"]]},
        {"argv": ["a"], "cwd": ""},
        {"argv": ["a"], "more": 1},
    ],
)
def test_a_terminal_that_cannot_be_is_refused(caller: Caller, pty: str, body: dict[str, object]) -> None:
    assert caller.ask("POST", pty, body).status == 400


@pytest.mark.parametrize("route", ["attach", "input", "resize", "kill", "read"])
def test_a_terminal_that_is_not_there_is_not_found(caller: Caller, pty: str, route: str) -> None:
    bodies: dict[str, object] = {"input": {"data_b64": ""}, "resize": {"cols": 1, "rows": 1}, "read": {"timeout_ms": 0}}
    method = "GET" if route == "attach" else "POST"
    answer = caller.ask(method, f"{pty}/{UNKNOWN}/{route}", bodies.get(route))
    assert answer.status == 404
    assert set(answer.json) == {"error", "code", "hint", "details"}


@pytest.mark.parametrize("data", ["a", "a===", "ab\ncd", "é", 7, None])
def test_input_that_is_no_base64_is_refused(caller: Caller, pty: str, opened: Opener, data: object) -> None:
    session = opened(argv=["cat"])
    assert caller.ask("POST", f"{pty}/{session.id}/input", {"data_b64": data}).status == 400


def test_a_long_input_is_typed_whole(caller: Caller, pty: str, opened: Opener) -> None:
    session = opened(shellCmd="stty raw -echo; echo ready; head -c 600000 | wc -c")
    session.until(b"ready")
    typed(caller, pty, session, b"x" * 600_000)
    assert session.until(b"600000").split() == [b"ready", b"600000"]
    assert session.exit_code() == 0
