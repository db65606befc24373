"""How long the forwarder waits for whom, with times of a test: it ends what hangs, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from ramet.network.connecting.resolver import Lookups, Resolver
from ramet.network.http import timeouts
from ramet.network.http.forwarding import forward
from ramet.network.peers import SandboxPeer
from ramet.network.reports import Reports
from ramet.network.streams.socket_stream import SocketStream
from ramet.network.streams.stream import PIECE_BYTES
from ramet.protocol.network.specs import NetworkSpec, read_rules
from tests.network.proxies import NAME
from tests.network.servers import LOOPBACK, WAIT_SECONDS


class _WholePieces:
    """The share of a stream that no sandbox slows down."""

    piece_bytes = PIECE_BYTES


class Exchange:
    """A client and a server with the forwarder between them, all in one loop; each side is the test's to play."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.server: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.task: asyncio.Task[object]

    async def request(self, more: str = "") -> None:
        host = f"{NAME}:{self.port}"
        self.writer.write(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())

    async def serving(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.wait_for(self.server.get(), WAIT_SECONDS)
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer

    async def all(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), WAIT_SECONDS)

    async def assert_over(self) -> None:
        assert await asyncio.wait_for(self.task, WAIT_SECONDS) is None


@pytest.fixture
async def exchange(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Exchange]:
    monkeypatch.setattr(timeouts, "_LOOK_SECONDS", 0.02)
    made: Exchange

    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await made.server.put((reader, writer))

    server = await asyncio.start_server(connected, LOOPBACK, 0)
    made = Exchange(server.sockets[0].getsockname()[1])
    network = NetworkSpec(allow=read_rules([f"{NAME}:{made.port}"]), addresses=((NAME, LOOPBACK),))
    resolver = Resolver()
    peer = SandboxPeer(1, network, (), (), Reports(1, lambda messages, now: True), Lookups(resolver))
    ours, theirs = socket.socketpair()
    made.reader, made.writer = await asyncio.open_connection(sock=theirs)
    _, stream = await asyncio.get_running_loop().create_connection(lambda: SocketStream(_WholePieces()), sock=ours)
    made.task = asyncio.create_task(forward(stream, peer, None, False))
    yield made
    made.task.cancel()
    await asyncio.wait({made.task}, timeout=WAIT_SECONDS)
    peer.close()
    resolver.close()
    server.close()
    for writer in (made.writer, *writers):
        writer.transport.abort()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass  # as it was meant to be


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"


async def test_a_client_that_has_nothing_more_to_say_is_let_go(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "IDLE_SECONDS", 0.05)
    await exchange.request()
    _, server = await exchange.serving()
    server.write(OK)
    assert await exchange.all() == OK
    await exchange.assert_over()


async def test_half_a_head_is_not_waited_for_without_end(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "HEAD_SECONDS", 0.05)
    exchange.writer.write(b"GET http://data.example/ HTTP/1.1\r\nHost: ")
    assert await exchange.all() == b""
    await exchange.assert_over()


async def test_a_server_that_says_nothing_is_told_with_504(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "ANSWER_SECONDS", 0.05)
    await exchange.request()
    await exchange.serving()
    answer = await exchange.reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 504 data.example:")
    assert b"nothing came for" in answer


async def test_somebody_who_was_told_and_does_not_leave_is_let_go(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(timeouts, "LINGER_SECONDS", 0.05)
    await exchange.request()
    await exchange.serving()
    assert (await exchange.all()).startswith(b"HTTP/1.1 504 data.example:")
    await exchange.assert_over()


async def test_a_server_that_stops_in_the_middle_is_cut_off_with_its_client(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "ANSWER_SECONDS", 0.05)
    await exchange.request()
    _, server = await exchange.serving()
    server.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na")
    assert (await exchange.all()).endswith(b"\r\n\r\na")
    await exchange.assert_over()


async def test_a_client_that_does_not_read_is_cut_off(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "ANSWER_SECONDS", 0.5)
    await exchange.request()
    _, server = await exchange.serving()
    server.write(b"HTTP/1.1 200 OK\r\nContent-Length: 40000000\r\n\r\n")
    await exchange.reader.readuntil(b"\r\n\r\n")
    exchange.writer.transport.pause_reading()  # type: ignore[attr-defined]
    server.write(bytes(40_000_000))
    await exchange.assert_over()


@pytest.mark.deep("load")
async def test_a_server_that_goes_on_speaking_may_take_as_long_as_it_likes(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is given the whole time, of which it takes a small part; all of them take longer than that."""
    monkeypatch.setattr(timeouts, "ANSWER_SECONDS", 2.5)
    await exchange.request()
    _, server = await exchange.serving()
    server.write(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n")
    for _ in range(15):
        await asyncio.wait({exchange.task}, timeout=0.2)
        server.write(b"x")
    assert (await exchange.reader.readuntil(b"x" * 15)).startswith(b"HTTP/1.1 200 OK")


async def test_a_client_that_has_left_takes_its_request_with_it(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "GONE_SECONDS", 0.05)
    await exchange.request()
    reader, _ = await exchange.serving()
    exchange.writer.close()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), WAIT_SECONDS)
    await exchange.assert_over()


async def test_a_client_that_has_only_ended_its_half_gets_its_answer(exchange: Exchange) -> None:
    await exchange.request()
    exchange.writer.write_eof()
    _, server = await exchange.serving()
    server.write(OK)
    assert await exchange.all() == OK
    await exchange.assert_over()
