"""Uploads of any size: what is small travels with its length, what is large in chunks while it is read."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from ramet import FileForbidden, InvalidArgument, OutcomeUnknown, SandboxClosed
from ramet.client.operations import cells, files
from ramet.client.operations.cells import CellOrder
from ramet.client.sources import pieces
from ramet.errors import file_error
from ramet.protocol import calls
from tests.http_client.conftest import Perform
from tests.http_client.servers import DONE, WAIT_SECONDS, Peer, Request, answer, refusal, serving

MIB = 1 << 20


def counted(pulled: list[int], total: int) -> Iterator[bytes]:
    """Pieces of a MiB, each noted as it is taken."""
    for number in range(total):
        pulled.append(number)
        yield b"x" * MIB


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 5 * MIB + 17])
def test_a_file_arrives_whole(perform: Perform, size: int) -> None:
    seen: list[Request] = []

    def take(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(request)
            peer.answer(DONE)

    data = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    with serving(take) as server:
        for _ in range(2):
            perform(server.url, files.write("sbx_1", "/root/f", data), pieces(data))
        assert server.connections == 1
    for request in seen:
        assert b"".join(frame.blob for frame in request.frames) == data
        assert (b"transfer-encoding" in request.headers) == (size > MIB)


def test_a_small_stream_is_sent_with_its_length(perform: Perform) -> None:
    seen: list[Request] = []

    def take(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(request)
            peer.answer(DONE)

    with serving(take) as server:
        perform(server.url, files.write("sbx_1", "/root/f", iter(())), iter([b"ab", b"cd"]))
    (request,) = seen
    assert b"content-length" in request.headers
    assert [frame.kind for frame in request.frames] == [calls.WRITE, calls.CHUNK, calls.CHUNK, calls.END]


@pytest.mark.parametrize("end", ["keeps the connection", "hangs up"])
def test_a_refusal_during_an_upload_ends_it(perform: Perform, end: str) -> None:
    body = b'{"error": "too large", "code": "invalid_argument", "details": {"argument": "data"}}'

    def refuse(peer: Peer) -> None:
        peer.read_head()
        peer.send(refusal(b"413 Content Too Large", body))
        if end == "keeps the connection":
            # Without reading any more: the client has to notice while it waits for room.
            until_it_hangs_up = select.poll()
            until_it_hangs_up.register(peer.sock, select.POLLRDHUP)
            assert until_it_hangs_up.poll(WAIT_SECONDS * 1000)

    pulled: list[int] = []
    with serving(refuse) as server:
        with pytest.raises(InvalidArgument, match="too large"):
            perform(server.url, files.write("sbx_1", "/root/f", iter(())), counted(pulled, 1000))
    assert len(pulled) < 100


def test_an_error_frame_during_an_upload_ends_it(perform: Perform) -> None:
    def refuse(peer: Peer) -> None:
        peer.read_head()
        peer.send(answer(calls.encode_error(file_error("write", "/etc/f", 13)), status=b"403 Forbidden"))
        peer.wait_until_closed()

    pulled: list[int] = []
    with serving(refuse) as server:
        with pytest.raises(FileForbidden) as refused:
            perform(server.url, files.write("sbx_1", "/etc/f", iter(())), counted(pulled, 1000))
        assert refused.value.errno == 13
    assert len(pulled) < 500


def test_a_refusal_of_a_long_cell_is_read(perform: Perform) -> None:
    def refuse(peer: Peer) -> None:
        peer.read_head()
        peer.send(answer(calls.encode_error(SandboxClosed("gone")), status=b"404 Not Found"))

    with serving(refuse) as server:
        with pytest.raises(SandboxClosed, match="gone"):
            perform(server.url, cells.run("sbx_1", "#" * 60_000_000, "python", None, order=CellOrder()))
        assert server.connections == 1


def test_an_upload_whose_connection_breaks_is_not_sent_again(perform: Perform) -> None:
    def die(peer: Peer) -> None:
        peer.read_head()
        peer.reset()

    pulled: list[int] = []
    with serving(die) as server:
        with pytest.raises(OutcomeUnknown, match="incomplete"):
            perform(server.url, files.write("sbx_1", "/root/f", iter(())), counted(pulled, 1000))
        assert server.connections == 1
    assert len(pulled) < 500


def test_a_source_that_fails_is_told_to_the_server_and_to_the_caller(perform: Perform) -> None:
    seen: list[Request] = []

    def broken() -> Iterator[bytes]:
        yield b"x" * (3 * MIB)
        raise KeyError("of the source")

    def take(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(request)
            peer.answer(calls.encode_error(file_error("write", "/root/f", 5)))

    with serving(take) as server:
        with pytest.raises(KeyError, match="of the source"):
            perform(server.url, files.write("sbx_1", "/root/f", iter(())), broken())
    assert seen[0].frames[-1].kind == calls.ABORT
