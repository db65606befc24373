"""Answers that are no frames become the error they describe, or one that says who seems to have answered."""

from __future__ import annotations

import json

import pytest

from ramet import InvalidArgument, LimitReached, OutcomeUnknown, ProtocolError, RametError, Unauthorized
from ramet.client.operations import cells
from ramet.client.operations.cells import CellOrder
from ramet.errors import SandboxClosed
from ramet.protocol import calls
from tests.http_client.conftest import Perform
from tests.http_client.servers import Peer, Request, Script, answer, refusal, serving

KEY = "rmt_a-key-that-nobody-may-see"


def refuse_with(said: bytes, seen: list[Request] | None = None) -> Script:
    def refuse(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            if seen is not None:
                seen.append(request)
            peer.send(said)

    return refuse


def told(code: str, message: str, **details: object) -> bytes:
    return json.dumps({"error": message, "code": code, "hint": "do this", "details": details}).encode()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (b"400 Bad Request", "invalid_argument", InvalidArgument),
        (b"401 Unauthorized", "unauthorized", Unauthorized),
        (b"410 Gone", "sandbox_closed", SandboxClosed),
        (b"429 Too Many Requests", "limit_reached", LimitReached),
        (b"500 Internal Server Error", "something_new", RametError),
    ],
)
def test_an_error_in_json_becomes_that_error(
    perform: Perform, status: bytes, code: str, kind: type[RametError]
) -> None:
    said = refusal(status, told(code, "because", argument="code", cause="idle"), b"Retry-After: 7")
    with serving(refuse_with(said)) as server:
        with pytest.raises(kind) as refused:
            perform(server.url, cells.interrupt("sbx_1"))
        assert (refused.value.message, refused.value.hint) == ("because", "do this")
        assert refused.value.details == {"argument": "code", "cause": "idle", "retry_after_seconds": 7}
        with pytest.raises(kind):
            perform(server.url, cells.interrupt("sbx_1"))
        assert server.connections == 1, "a refusal leaves the connection as good as it was"


def test_an_error_frame_is_that_error_whatever_the_status(perform: Perform) -> None:
    said = answer(calls.encode_error(SandboxClosed("gone", details={"cause": "idle"})), status=b"410 Gone")
    with serving(refuse_with(said)) as server:
        with pytest.raises(SandboxClosed) as closed:
            perform(server.url, cells.interrupt("sbx_1"))
        assert closed.value.details == {"cause": "idle"}


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(perform: Perform, status: int) -> None:
    seen: list[Request] = []
    with serving(refuse_with(b"", seen)) as elsewhere:
        said = refusal(b"%d Moved" % status, b"", b"Location: " + elsewhere.url.encode() + b"/v1/call")
        with serving(refuse_with(said)) as server:
            with pytest.raises(ProtocolError, match="not followed") as refused:
                perform(server.url, cells.interrupt("sbx_1"), key=KEY)
        assert elsewhere.url in str(refused.value)
        assert KEY not in str(refused.value)
        assert elsewhere.connections == 0
    assert not seen


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (refusal(b"404 Not Found", b"<html>no such page</html>"), ProtocolError),
        (refusal(b"200 OK", b"<html>hello</html>"), ProtocolError),
        (refusal(b"200 OK", b'{"error": 5, "code": []}'), ProtocolError),
        (refusal(b"400 Bad Request", b"[" * 60_000), ProtocolError),
        (refusal(b"403 Forbidden", b"go away"), Unauthorized),
        (refusal(b"429 Too Many", b""), LimitReached),
        (refusal(b"502 Bad Gateway", b"<html>"), OutcomeUnknown),
        (refusal(b"504 Gateway Timeout", b"x" * 1_000_000), OutcomeUnknown),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + refusal(b"404 Not Found", b""), ProtocolError),
    ],
)
def test_what_somebody_else_answers_is_a_typed_error(perform: Perform, said: bytes, kind: type[RametError]) -> None:
    with serving(refuse_with(said)) as server:
        with pytest.raises(kind) as refused:
            perform(server.url, cells.run("sbx_1", "1", "python", None, order=CellOrder()), key=KEY)
        assert server.url in str(refused.value)
        assert KEY not in str(refused.value) + repr(refused.value) + repr(refused.value.details)
        assert len(str(refused.value)) < 2000


def test_a_refusal_without_an_end_is_cut_off(perform: Perform) -> None:
    def babble(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            peer.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    with serving(babble) as server:
        with pytest.raises(Unauthorized):
            perform(server.url, cells.interrupt("sbx_1"))


def test_an_answer_without_a_length_ends_with_its_connection(perform: Perform) -> None:
    def say(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.0 403 Forbidden\r\n\r\nnot today")

    with serving(say) as server:
        with pytest.raises(Unauthorized, match="not today"):
            perform(server.url, cells.interrupt("sbx_1"))
