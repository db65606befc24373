"""A TCP connection with both ends in a sandbox: what is on its way when it is copied is neither lost nor doubled."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.freezing.descriptors.bounds import Budget
from ramet.freezing.descriptors.recipes import Address, Description, InternetSocket, SocketFacts
from ramet.freezing.descriptors.sockets import internet_sockets

SEND, RECEIVE = ("127.0.0.1", 1001), ("127.0.0.1", 1002)
ALL = bytes(range(200))
_ESTABLISHED, _TCP_QUEUE_SEQ, _FIRST = 1, 21, (1 << 32) - 50  # sequence numbers begin anew in the middle
_FACTS = SocketFacts(socket.AF_INET, socket.SOCK_STREAM, 0, (), False)


class ScriptedEnd:
    """A socket with these bytes in its queue, which end at a sequence number."""

    def __init__(self, queue: bytes, end: int) -> None:
        self.queue = queue
        self.end = end

    def setsockopt(self, *_: int) -> None: ...

    def getsockopt(self, level: int, option: int) -> int:
        return (_FIRST + self.end) % (1 << 32) if (level, option) == (socket.IPPROTO_TCP, _TCP_QUEUE_SEQ) else 0

    def recv(self, count: int, flags: int) -> bytes:
        return self.queue[:count]


class Connection:
    """The sender keeps what was not acknowledged; of what it has sent, some arrives after each look."""

    lost: list[str]

    def __init__(self, acknowledged: int, arrived: int, arriving: list[int]) -> None:
        self.budget, self.lost = Budget(), []
        self._sender = ScriptedEnd(ALL[acknowledged:], len(ALL))
        self._receiver = ScriptedEnd(ALL[:arrived], arrived)
        self._arriving = arriving

    @contextmanager
    def copy_of_socket(self, number: int) -> Iterator[ScriptedEnd]:
        yield self._sender if number == 0 else self._receiver

    def peek(self, receiver: ScriptedEnd, _: Budget) -> bytes:
        seen = receiver.queue
        if self._arriving:
            receiver.end += self._arriving.pop(0)
            receiver.queue = ALL[: receiver.end]
        return seen


def description(local: Address, remote: Address, under_way: int) -> Description:
    thing = InternetSocket(_FACTS, local, remote, False, 0, 0, _ESTABLISHED, b"", under_way, ())
    return Description((), 0, 0, thing, ())


@pytest.mark.parametrize("arriving", [[], [10], [30, 1, 1], [1] * 40, [100]], ids=str)
@pytest.mark.parametrize("acknowledged", [0, 40, 100])
def test_what_arrives_while_it_is_looked_at_is_there_once(
    monkeypatch: pytest.MonkeyPatch, acknowledged: int, arriving: list[int]
) -> None:
    connection: Any = Connection(acknowledged, 100, list(arriving))
    monkeypatch.setattr(internet_sockets, "peek_tcp", connection.peek)
    monkeypatch.setattr(internet_sockets, "may_receive", lambda _: True)
    ends = [description(SEND, RECEIVE, len(ALL) - acknowledged), description(RECEIVE, SEND, 0)]
    opened: Any = {number: SimpleNamespace(number=number) for number in range(2)}
    _, receiver = internet_sockets.read_under_way(connection, ends, opened)
    assert isinstance(receiver.thing, InternetSocket)
    assert (receiver.thing.received, connection.lost) == (ALL, [])


def test_a_connection_that_does_not_come_to_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Any = Connection(0, 0, [1] * len(ALL))
    monkeypatch.setattr(internet_sockets, "peek_tcp", connection.peek)
    monkeypatch.setattr(internet_sockets, "may_receive", lambda _: True)
    ends = [description(SEND, RECEIVE, len(ALL)), description(RECEIVE, SEND, 0)]
    opened: Any = {number: SimpleNamespace(number=number) for number in range(2)}
    internet_sockets.read_under_way(connection, ends, opened)
    (lost,) = connection.lost
    assert "socket 0: 200 bytes on their way" in lost
