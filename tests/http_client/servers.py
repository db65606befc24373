"""Servers on real sockets that do, connection by connection, what a test tells them to."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ramet.protocol import calls
from ramet.protocol.calls import Outcome, encode_outcome
from ramet.protocol.frames import TO_ENGINE, Frame, FrameDecoder, encode

WAIT_SECONDS = 30


@dataclass(frozen=True)
class Request:
    """What a client sent: the request line, the header lines by name, and the frames of the body."""

    line: bytes
    headers: dict[bytes, bytes]
    frames: list[Frame]


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(WAIT_SECONDS)
        self.sock = sock
        self._buffer = b""

    def read_head(self) -> Request | None:
        """The head of the next request; None if the client has closed the connection."""
        while b"\r\n\r\n" not in self._buffer:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._buffer += data
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (entry.partition(b":") for entry in lines)}
        return Request(line, headers, [])

    def read(self) -> Request | None:
        """The next request, whole."""
        request = self.read_head()
        if request is None:
            return None
        request.frames.extend(FrameDecoder(TO_ENGINE).feed(self._body(request)))
        return request

    def _body(self, request: Request) -> bytes:
        if b"content-length" in request.headers:
            return self._exactly(int(request.headers[b"content-length"]))
        assert request.headers[b"transfer-encoding"] == b"chunked"
        body = b""
        while size := int(self._line(), 16):
            body += self._exactly(size)
            assert self._line() == b""
        assert self._line() == b""
        return body

    def _exactly(self, count: int) -> bytes:
        parts = [self._buffer]
        missing = count - len(self._buffer)
        while missing > 0:
            data = self.sock.recv(min(missing, 1 << 20))
            assert data, "the client hung up in the middle of a body"
            parts.append(data)
            missing -= len(data)
        whole = b"".join(parts)
        self._buffer = whole[count:]
        return whole[:count]

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            data = self.sock.recv(65536)
            assert data, "the client hung up in the middle of a body"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, *frames: bytes) -> None:
        self.send(answer(*frames))

    def serve(self, *frames: bytes) -> None:
        """Answer every request with the same frames, until the client has closed the connection."""
        while self.read() is not None:
            self.answer(*frames)

    def wait_until_closed(self) -> None:
        while self.sock.recv(65536):
            pass

    def reset(self) -> None:
        """Hang up without a farewell, as a machine that lost its power would, once it is back."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


Script = Callable[[Peer], None]


class ScriptedServer:
    """Each connection is handled by the next script, the last one by all that come after."""

    def __init__(self, *scripts: Script, wrap: Callable[[socket.socket], socket.socket] | None = None) -> None:
        self._scripts = scripts
        self._wrap = wrap
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listening.getsockname()[1]
        self.connections = 0
        self.ended = threading.Semaphore(0)  # once for each connection that the server has closed
        self.failures: list[BaseException] = []
        self._stop, self._stopped = socket.socketpair()
        self._peers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, name="scripted server")
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._listening, self._stopped], [], [])
            if self._stopped in ready:
                return
            sock, _ = self._listening.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            thread = threading.Thread(target=self._run, args=(script, sock))
            self._threads.append(thread)
            thread.start()

    def _run(self, script: Script, sock: socket.socket) -> None:
        try:
            sock.settimeout(WAIT_SECONDS)
            with sock if self._wrap is None else self._wrap(sock) as connection:
                self._peers.append(connection)
                script(Peer(connection))
        except OSError:
            pass  # the client hung up, as it may
        except BaseException as failure:
            self.failures.append(failure)
        finally:
            self.ended.release()

    def close(self) -> None:
        self._stop.send(b"x")
        self._thread.join()
        self._listening.close()
        for sock in self._peers:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        self._stop.close()
        self._stopped.close()
        assert not self.failures, self.failures


@contextmanager
def serving(*scripts: Script, wrap: Callable[[socket.socket], socket.socket] | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(*scripts, wrap=wrap)
    try:
        yield server
    finally:
        server.close()


def answer(*frames: bytes, status: bytes = b"200 OK") -> bytes:
    """An answer of frames, whose length is told ahead."""
    body = b"".join(frames)
    head = b"HTTP/1.1 %s\r\nContent-Type: application/vnd.ramet.frames\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def chunked(*frames: bytes) -> bytes:
    """An answer of frames without its end: each frame a chunk of its own."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ramet.frames\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames)


def refusal(status: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Type: application/json", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


DONE = encode(calls.ANSWER, {})
FORTY_TWO = encode_outcome(Outcome(cell_id=1, exit_code=0, state="kept", stdout=b"42\n"))
