"""Tools over HTTP: calls come with the answer to RUN, and are answered by requests of their own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.tools.values import encode_value
from ramet.protocol.values.results import Result
from tests.server.engines import KeeperProcess
from tests.server.running import Server, running_server
from tests.server.talking import WAIT_SECONDS, Client, wait_until
from tests.server.workers import running_worker

TOOL = {
    "name": "ask",
    "description": "",
    "input_schema": {"type": "object"},
    "parameters": None,
    "returns": None,
    "calls_per_cell": None,
    "timeout_seconds": None,
}
SAY = """
try:
    print('got', ask(what='x'))
except ToolError as error:
    print(error.kind, error)
"""
GONE = "gone the program that answers tool calls has gone away\n"


class Cell:
    """A cell with tools on a connection of its own, of which the frames are read as they come."""

    def __init__(self, client: Client, sandbox_id: str, code: str = SAY, **more: object) -> None:
        header = {"sandbox": sandbox_id, "language": "python", "timeout": None, "stream": False, "tools": True}
        self.execution = f"exe_{id(self):032x}"
        self._sandbox_id = sandbox_id
        self._client = Client(client.port, client_key(client))
        frame = encode(calls.RUN, {**header, "execution": self.execution, **more}, code.encode())
        authorization = "".join(f"{name}: {value}\r\n" for name, value in self._client._headers.items()).encode()
        self.connection = socket.create_connection(("127.0.0.1", client.port), timeout=WAIT_SECONDS)
        self.connection.sendall(
            b"POST /v1/call HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (authorization, len(frame))
            + frame
        )
        self._file = self.connection.makefile("rb")
        self._decoder = FrameDecoder(FROM_ENGINE)
        self._frames: list[Frame] = []
        self._begun = False

    def next(self) -> Frame:
        """The next frame, as soon as it is there. An answer that comes in chunks only."""
        if not self._begun:
            assert b"200" in self._file.readline()
            while self._file.readline() != b"\r\n":
                pass
            self._begun = True
        while not self._frames:
            size = int(self._file.readline(), 16)
            assert size, "the answer ended"
            self._frames += self._decoder.feed(self._file.read(size))
            self._file.readline()
        return self._frames.pop(0)

    def called(self) -> str:
        """The id of the next call."""
        while (frame := self.next()).kind == calls.HEARTBEAT:
            pass
        assert frame.kind == calls.TOOL_CALL, frame
        assert json.loads(frame.blob) == {"what": "x"}
        return str(frame.header["call"])

    def end(self) -> Result:
        while (frame := self.next()).kind in (calls.HEARTBEAT, calls.TOOL_CANCELLED):
            pass
        self.hang_up()
        return calls.read_result(frame)

    def hang_up(self) -> None:
        self._file.close()
        self.connection.close()

    def result(self) -> dict[str, Any]:
        """By its id, whoever began it."""
        path = f"/v1/sandboxes/{self._sandbox_id}/executions/{self.execution}"
        wait_until(lambda: self._client.ask("GET", path).status == 200, "the cell is known")
        found: dict[str, Any] = self._client.ask("GET", f"{path}?wait=true").json["result"]
        self._client.close()
        return found


def client_key(client: Client) -> str | None:
    authorization = client._headers.get("Authorization")
    return None if authorization is None else authorization.removeprefix("Bearer ")


def give(client: Client, sandbox_id: str, *tools: Mapping[str, object]) -> None:
    answer = client.call(calls.SET_TOOLS, {"sandbox": sandbox_id}, json.dumps(tools or [TOOL]).encode())
    assert (answer.status, answer.frames[0].kind) == (200, calls.ANSWER), answer


def answer(client: Client, sandbox_id: str, call_id: str, value: object = "y", **more: object) -> bool:
    header = {"sandbox": sandbox_id, "call": call_id, "outcome": "value", "more": False, **more}
    answered = client.call(calls.TOOL_ANSWER, header, encode_value(value).whole())
    assert answered.status == 200, answered
    return bool(answered.frames[0].header["taken"])


def test_a_call_comes_while_the_cell_runs_and_its_answer_goes_another_way(client: Client, sandbox_id: str) -> None:
    give(client, sandbox_id)
    cell = Cell(client, sandbox_id)
    call_id = cell.called()
    assert answer(client, sandbox_id, call_id)
    assert cell.end().stdout == "got y\n"
    assert not answer(client, sandbox_id, call_id)  # nobody waits any more


def test_a_long_answer_goes_in_pieces(client: Client, sandbox_id: str) -> None:
    give(client, sandbox_id)
    cell = Cell(client, sandbox_id, "print(len(ask(what='x')))")
    first, *pieces = encode_value(bytes(3_000_000)).pieces(calls.CHUNK_BYTES)
    header = {"sandbox": sandbox_id, "call": cell.called(), "outcome": "value", "more": True}
    body = encode(calls.TOOL_ANSWER, header, first)
    body += b"".join(encode(calls.CHUNK, {}, piece) for piece in pieces) + encode(calls.END, {})
    answered = client.ask("POST", "/v1/call", body)
    assert answered.frames[0].header == {"taken": True}
    assert cell.end().stdout == "3000000\n"


def test_an_answer_that_breaks_off_is_an_error_inside(client: Client, sandbox_id: str) -> None:
    give(client, sandbox_id)
    cell = Cell(client, sandbox_id)
    first, *_ = encode_value(bytes(3_000_000)).pieces(calls.CHUNK_BYTES)
    header = {"sandbox": sandbox_id, "call": cell.called(), "outcome": "value", "more": True}
    refused = client.ask("POST", "/v1/call", encode(calls.TOOL_ANSWER, header, first))
    assert (refused.status, refused.json["code"]) == (400, "protocol_error")
    assert cell.end().stdout.startswith("gone ")


def test_nothing_is_left_unanswered_because_it_was_to_be_quiet(client: Client, sandbox_id: str) -> None:
    give(client, sandbox_id)
    cell = Cell(client, sandbox_id)
    assert answer(client, sandbox_id, cell.called(), quiet=True)
    assert cell.end().stdout == "got y\n"


# Whoever answers goes away


def test_a_cell_that_is_kept_learns_that_nobody_answers_any_more(client: Client, sandbox_id: str) -> None:
    give(client, sandbox_id)
    cell = Cell(client, sandbox_id, SAY * 2, on_disconnect="keep")
    call_id = cell.called()
    cell.hang_up()
    result = cell.result()
    assert result["stdout"] == GONE * 2
    assert [call["outcome"] for call in result["tool_calls"]] == ["gone", "gone"]
    assert not answer(client, sandbox_id, call_id)


def test_a_cell_in_the_queue_learns_it_too(client: Client, sandbox_id: str) -> None:
    give(client, sandbox_id)
    first = Cell(client, sandbox_id, on_disconnect="keep")
    call_id = first.called()
    second = Cell(client, sandbox_id, on_disconnect="keep")
    path = f"/v1/sandboxes/{sandbox_id}/executions/{second.execution}"
    wait_until(lambda: client.ask("GET", path).status == 200, "the second cell waits")
    second.hang_up()
    assert answer(client, sandbox_id, call_id)
    assert first.end().stdout == "got y\n"
    assert second.result()["stdout"] == GONE


def test_a_cell_that_ends_with_its_client_is_interrupted_in_its_call(client: Client, sandbox_id: str) -> None:
    give(client, sandbox_id)
    cell = Cell(client, sandbox_id, on_disconnect="interrupt")
    cell.called()
    cell.hang_up()
    assert cell.result()["interrupted"]


def test_a_cell_over_json_has_nobody_who_answers(client: Client, sandbox_id: str) -> None:
    give(client, sandbox_id)
    result = client.execute(sandbox_id, SAY, format="json").json
    assert result["stdout"] == "refused the program that runs this cell answers no tool calls\n"
    assert result["tool_calls"] == [
        {
            "name": "ask",
            "arguments": {"what": "x"},
            "duration_seconds": result["tool_calls"][0]["duration_seconds"],
            "outcome": "refused",
            "message": "the program that runs this cell answers no tool calls",
        }
    ]
    assert result["tool_calls_dropped"] == 0
    events = client.execute(sandbox_id, SAY).events
    assert events[0]["data"] == "refused the program that runs this cell answers no tool calls"


# What is not possible


@pytest.mark.parametrize(
    ("tools", "status"),
    [
        (b"[" + b" " * (1024 * 1024 + 100_000) + b"]", 413),
        (b"no JSON", 400),
        (b"{}", 400),
        (b'[{"name": "x"}]', 400),
        (json.dumps([{**TOOL, "name": "two words"}]).encode(), 400),
        (json.dumps([TOOL, TOOL]).encode(), 400),
        (json.dumps([{**TOOL, "name": f"t{n}"} for n in range(1001)]).encode(), 400),
    ],
)
def test_tools_that_cannot_be(client: Client, sandbox_id: str, tools: bytes, status: int) -> None:
    assert client.call(calls.SET_TOOLS, {"sandbox": sandbox_id}, tools).status == status
    assert client.stdout(sandbox_id, "print('ask' in globals())") == "False"


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"outcome": "value"},
        {"outcome": "maybe", "more": False},
        {"outcome": "error", "more": True},
        {"outcome": "error", "more": False, "kind": "unheard of"},
    ],
)
def test_answers_that_are_none(client: Client, sandbox_id: str, header: dict[str, object]) -> None:
    refused = client.call(calls.TOOL_ANSWER, {"sandbox": sandbox_id, "call": "tc_1", **header})
    assert refused.status == 400


def test_a_piece_that_is_too_long_is_refused(client: Client, sandbox_id: str) -> None:
    header = {"sandbox": sandbox_id, "call": "tc_1", "outcome": "value", "more": False}
    assert client.call(calls.TOOL_ANSWER, header, bytes(calls.CHUNK_BYTES + 100_000)).status == 413


def test_nobody_but_the_server_says_that_somebody_is_gone(client: Client, sandbox_id: str) -> None:
    refused = client.call(calls.TOOLS_GONE, {"sandbox": sandbox_id, "execution": "exe_" + "0" * 32})
    assert (refused.status, refused.json["code"]) == (400, "protocol_error")


def test_a_cell_with_tools_in_no_sandbox_is_refused(client: Client) -> None:
    refused = client.call(calls.RUN, {"language": "python", "timeout": None, "stream": False, "tools": True}, b"1")
    assert refused.status == 400


# Between keys


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("keys"), "--require-key") as running:
        yield running


def test_tools_of_another_key_cannot_be_set_nor_answered(keyed_server: Server) -> None:
    alice, bob = (Client(keyed_server.port, keyed_server.create_key(name)) for name in ("alice", "bob"))
    sandbox_id = alice.create()
    give(alice, sandbox_id)
    refused = bob.call(calls.SET_TOOLS, {"sandbox": sandbox_id}, b"[]")
    assert refused.status == 404
    cell = Cell(alice, sandbox_id)
    call_id = cell.called()
    for header in ({}, {"owner": "alice"}):
        assert not answer(bob, sandbox_id, call_id, "forged", **header)
    assert answer(alice, sandbox_id, call_id)
    assert cell.end().stdout == "got y\n"
    alice.remove(sandbox_id)
    alice.close()
    bob.close()


@pytest.mark.deep("restarts")
def test_while_a_call_waits_the_server_says_that_it_is_alive(tmp_path: Path) -> None:
    keeper = KeeperProcess(tmp_path / "state")
    try:
        with running_worker(tmp_path, heartbeat_seconds=0.1, engine_seconds=30.0) as worker:
            client = Client(worker.port)
            sandbox_id = client.create()
            give(client, sandbox_id)
            cell = Cell(client, sandbox_id)
            call_id = cell.called()
            assert cell.next().kind == calls.HEARTBEAT
            assert answer(client, sandbox_id, call_id)
            assert cell.end().stdout == "got y\n"
            client.close()
    finally:
        keeper.close()
