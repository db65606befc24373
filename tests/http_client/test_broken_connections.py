"""What a broken connection means depends on when it breaks: done again if that is harmless, else told as unknown."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from ramet import AsyncSandbox, OutcomeUnknown, ProtocolError, Sandbox, Unreachable
from ramet.client.operations import cells, files, forks, sandboxes
from ramet.client.operations.cells import CellOrder
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.requests.operations import ForkOptions
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.transport.http.address import read_address
from ramet.transport.http.call import HttpCall
from ramet.transport.http.server import Server
from ramet.transport.http.steps import Dial, Pause
from tests.http_client.conftest import Perform
from tests.http_client.servers import FORTY_TWO, WAIT_SECONDS, Peer, Request, answer, chunked, serving

MADE = encode(calls.ANSWER, {"id": "sbx_1", "pid": 7})


def cell() -> Any:
    return cells.run("sbx_1", "print(6 * 7)", "python", None, order=CellOrder())


def serve_cells(peer: Peer) -> None:
    peer.serve(FORTY_TWO)


def test_a_connection_is_used_again(perform: Perform) -> None:
    with serving(serve_cells) as server:
        for _ in range(3):
            assert perform(server.url, cell()).stdout == "42\n"
        assert server.connections == 1


def test_an_idle_connection_that_was_closed_is_noticed_before_anything_is_sent(perform: Perform) -> None:
    def once(peer: Peer) -> None:
        peer.read()
        peer.answer(FORTY_TWO)

    with serving(once, serve_cells) as server:
        perform(server.url, cell())
        assert server.ended.acquire(timeout=WAIT_SECONDS)
        assert perform(server.url, cell()).stdout == "42\n"
        assert server.connections == 2


def test_a_server_that_says_it_will_close_is_believed(perform: Perform) -> None:
    def once(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ramet.frames\r\nConnection: close\r\n")
        peer.send(b"Content-Length: %d\r\n\r\n" % len(FORTY_TWO) + FORTY_TWO)
        peer.wait_until_closed()

    with serving(once) as server:
        perform(server.url, cell())
        perform(server.url, cell())
        assert server.connections == 2


def test_the_end_of_an_answer_may_come_after_its_final_frame(perform: Perform) -> None:
    def late(peer: Peer) -> None:
        while peer.read() is not None:
            peer.send(chunked(FORTY_TWO))
            peer.send(b"0\r\n\r\n")

    with serving(late) as server:
        for _ in range(5):
            assert perform(server.url, cell()).stdout == "42\n"


def test_a_server_that_goes_on_after_its_answer_is_not_asked_again_there(perform: Perform) -> None:
    def babble(peer: Peer) -> None:
        peer.read()
        peer.send(chunked(FORTY_TWO) + b"0\r\n")
        while True:
            peer.send(b"X-More: %s\r\n" % (b"x" * 4000))

    with serving(babble, serve_cells) as server:
        for _ in range(2):
            assert perform(server.url, cell()).stdout == "42\n"
        assert server.connections == 2


def test_a_refused_connection_is_tried_again() -> None:
    """A server that is being started again is not there for a moment. Played without I/O."""
    call = HttpCall(Server(read_address("http://127.0.0.1:7070")))
    assert call.send(encode(calls.INTERRUPT, {"sandbox": "sbx_1"})) is None
    todo = call.receive()
    assert isinstance(next(todo), Dial)
    assert isinstance(todo.throw(ConnectionRefusedError()), Pause)
    assert isinstance(todo.send(None), Dial)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        request = todo.send(ours)
        assert isinstance(request, bytes)
        assert request.startswith(b"POST /v1/call HTTP/1.1\r\nHost: 127.0.0.1:7070\r\n")
        todo.send(None)
        with pytest.raises(StopIteration) as stop:
            todo.send(answer(encode(calls.ANSWER, {"interrupted": False})))
        assert stop.value.value.kind == calls.ANSWER
        assert call.leave() is None


def test_a_server_that_stays_away_is_unreachable(perform: Perform) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(Unreachable) as failed:
            perform(f"http://127.0.0.1:{port}", cell())
    assert f"http://127.0.0.1:{port}" in str(failed.value)
    assert "ramet serve" in str(failed.value)


def test_a_name_that_nobody_knows_is_unreachable(perform: Perform) -> None:
    with pytest.raises(Unreachable, match=r"nobody\.invalid"):
        perform("http://nobody.invalid:7070", cell())


@pytest.mark.parametrize("end", ["closed", "reset"])
def test_a_server_that_dies_after_the_head_of_a_long_request_cannot_have_run_it(perform: Perform, end: str) -> None:
    def die(peer: Peer) -> None:
        peer.read_head()
        if end == "reset":
            peer.reset()

    def long() -> Any:
        return cells.run("sbx_1", "#" * 20_000_000, "python", None, order=CellOrder())

    with serving(die, serve_cells) as server:
        assert perform(server.url, long()).stdout == "42\n"
        assert server.connections == 2
    with serving(die) as server:
        with pytest.raises(Unreachable):
            perform(server.url, long())
        assert server.connections == 3


@pytest.mark.parametrize("end", ["closed", "reset"])
def test_a_cell_whose_server_dies_without_an_answer_is_not_run_again(perform: Perform, end: str) -> None:
    seen: list[Request | None] = []

    def die(peer: Peer) -> None:
        seen.append(peer.read())
        if end == "reset":
            peer.reset()

    with serving(die) as server:
        with pytest.raises(OutcomeUnknown) as unknown:
            perform(server.url, cell())
        assert server.connections == 1
    assert len(seen) == 1
    assert seen[0] is not None
    header = seen[0].frames[0].header
    assert unknown.value.details == {"sandbox": "sbx_1", "execution": header["execution"]}
    assert str(header["execution"]) in str(unknown.value)
    assert header["on_disconnect"] == "keep"
    assert b"idempotency-key" not in seen[0].headers


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nContent-", chunked(), chunked(FORTY_TWO)[:-20]])
def test_an_answer_that_breaks_off_leaves_the_outcome_unknown(perform: Perform, sent: bytes) -> None:
    def die(peer: Peer) -> None:
        peer.read()
        peer.send(sent)

    with serving(die) as server:
        with pytest.raises(OutcomeUnknown):
            perform(server.url, cell())
        assert server.connections == 1


def test_an_answer_that_ends_without_a_final_frame_leaves_the_outcome_unknown(perform: Perform) -> None:
    def stop(peer: Peer) -> None:
        peer.read()
        peer.send(chunked(encode(calls.CHUNK, {}, b"x")) + b"0\r\n\r\n")
        peer.wait_until_closed()

    with serving(stop) as server:
        with pytest.raises(OutcomeUnknown):
            perform(server.url, files.read("sbx_1", "/a"))


@pytest.mark.usefixtures("short_patience")
def test_a_server_that_never_answers_is_given_up(perform: Perform) -> None:
    with serving(Peer.wait_until_closed) as server:
        with pytest.raises(OutcomeUnknown, match="in time"):
            perform(server.url, cell())
        assert server.connections == 1


@pytest.mark.usefixtures("short_patience")
def test_a_server_that_only_says_that_it_is_alive_is_waited_for(perform: Perform) -> None:
    def slow(peer: Peer) -> None:
        peer.read()
        peer.send(chunked())
        beat = encode(calls.HEARTBEAT, {})
        for _ in range(8):
            # Not a test of time: longer in all than the client's patience, though no gap is.
            subprocess.run([sys.executable, "-c", "import time; time.sleep(0.05)"], check=True)
            peer.send(b"%x\r\n%s\r\n" % (len(beat), beat))
        peer.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(FORTY_TWO), FORTY_TWO))
        peer.wait_until_closed()

    with serving(slow) as server:
        assert perform(server.url, cell()).stdout == "42\n"


@pytest.mark.parametrize(
    "garbage",
    [
        b"220 mail.example ESMTP ready\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00",
        b"HTTP/1.1 banana\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ramet.frames\r\nContent-Length: 40\r\n\r\n" + b"\xff" * 40,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["another protocol", "TLS", "no status", "two lengths", "an endless head", "no frames", "an upgrade"],
)
def test_garbage_is_a_protocol_error(perform: Perform, garbage: bytes) -> None:
    def babble(peer: Peer) -> None:
        peer.read()
        peer.send(garbage)
        peer.wait_until_closed()

    with serving(babble) as server:
        with pytest.raises(ProtocolError):
            perform(server.url, cell())
        assert server.connections == 1


@pytest.mark.deep("load")
def test_creating_is_done_again_under_the_same_key(perform: Perform) -> None:
    seen: list[Request] = []

    def note(peer: Peer) -> None:
        request = peer.read()
        assert request is not None
        seen.append(request)

    def make(peer: Peer) -> None:
        note(peer)
        peer.answer(MADE)
        peer.wait_until_closed()

    with serving(note, note, make) as server:
        assert perform(server.url, sandboxes.create(SandboxOptions(cpus=1))) == "sbx_1"
    keys = {request.headers[b"idempotency-key"] for request in seen}
    assert (len(seen), len(keys)) == (3, 1)
    assert [request.frames[0].header for request in seen] == [{"cpus": 1}] * 3
    with serving(make) as server:
        perform(server.url, sandboxes.create(SandboxOptions()))
    assert seen[-1].headers[b"idempotency-key"] not in keys
    with serving(note) as server:
        with pytest.raises(OutcomeUnknown):
            perform(server.url, forks.fork("sbx_1", ForkOptions(n=2)))
        assert server.connections == 3


def test_other_calls_have_no_key_and_are_not_done_again(perform: Perform) -> None:
    def die(peer: Peer) -> None:
        peer.read()

    with serving(die) as server:
        for operation in (sandboxes.close("sbx_1"), files.remove("sbx_1", "/a", True)):
            with pytest.raises(OutcomeUnknown) as unknown:
                perform(server.url, operation)
            assert "execution" not in unknown.value.details
        assert server.connections == 2


def test_a_forked_child_uses_connections_of_its_own() -> None:
    def echo(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            peer.answer(encode(calls.ANSWER, {"interrupted": request.frames[0].header["sandbox"] == "parent"}))

    from ramet.client.drivers import blocking
    from ramet.transport.http.remote import remote_engine

    with serving(echo) as server:
        engine = remote_engine(server.url, None)
        assert blocking.perform(engine, cells.interrupt("parent"))
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                told = blocking.perform(engine, cells.interrupt("child"))
                os.write(writable, b"no" if told is False else b"yes")
            finally:
                os._exit(0)
        os.close(writable)
        os.waitpid(child, 0)
        with os.fdopen(readable, "rb") as said:
            assert said.read() == b"no"
        assert blocking.perform(engine, cells.interrupt("parent"))
        assert server.connections == 2


def hang_up(peer: Peer) -> None:
    peer.read()


def make_and_hang_up(peer: Peer) -> None:
    """Makes a sandbox, takes a cell, and is gone."""
    peer.read()
    peer.answer(MADE)
    peer.read()


def test_a_with_block_tells_of_the_cell_whose_connection_broke_and_not_of_its_own_end() -> None:
    with serving(make_and_hang_up, hang_up) as server:
        with pytest.raises(OutcomeUnknown) as unknown:
            with Sandbox(url=server.url) as sandbox:
                sandbox.run_code("print(1)")
    assert str(unknown.value.details["execution"]).startswith("exe_")


async def test_an_asynchronous_with_block_does_too() -> None:
    with serving(make_and_hang_up, hang_up) as server:
        with pytest.raises(OutcomeUnknown) as unknown:
            async with AsyncSandbox(url=server.url) as sandbox:
                await sandbox.run_code("print(1)")
    assert str(unknown.value.details["execution"]).startswith("exe_")
