"""HTTP spoken by hand: raw requests through a real proxy, and servers that answer with whatever bytes a test wants."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.network.proxies import Place, connect, receive_all
from tests.network.servers import Server, Talk, serving


@dataclass
class Answer:
    """As a client reads it from the wire."""

    status: int
    reason: str
    fields: dict[str, str]
    body: bytes
    raw: bytes = field(repr=False)

    @property
    def text(self) -> str:
        return self.body.decode()


def read_answer(raw: bytes) -> Answer:
    """The first answer; of the body, all that came behind the head."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    _, status, reason = first.split(" ", 2)
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(status), reason, fields, body, raw)


def say(place: Place, *pieces: bytes) -> bytes:
    """All that comes back until the proxy closes; we have ended our half of the connection."""
    with connect(place.proxy_port) as end:
        for piece in pieces:
            end.sendall(piece)
        end.shutdown(socket.SHUT_WR)
        return receive_all(end)


def ask(place: Place, raw: bytes) -> Answer:
    return read_answer(say(place, raw))


def hear_head(connection: socket.socket) -> bytes:
    """All of a head, and nothing behind it. Empty: there is none."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            return b""
        data += byte
    return data


@dataclass
class Heard:
    """What a scripted server was told: heads, in the order of their arrival, and how many connections there were."""

    heads: list[bytes] = field(default_factory=list)
    connections: int = 0


def scripted(answers: Sequence[bytes], heard: Heard) -> Talk:
    """A server that gives these bytes, one after each head that it hears, then closes. It reads no bodies."""

    def talk(connection: socket.socket) -> None:
        heard.connections += 1
        for answer in answers:
            head = hear_head(connection)
            if not head:
                return
            heard.heads.append(head)
            connection.sendall(answer)

    return talk


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[Server, Heard]]:
    heard = Heard()
    with serving(scripted(answers, heard), "http") as server:
        yield server, heard
