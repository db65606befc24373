"""Servers on this machine's loopback for sandboxes to reach, each in threads of its own; they end with their block.

Nothing is looked up anywhere: a test pins names of ``.example`` to 127.0.0.1, with ``Network(addresses={...})``. An
HTTP server answers for whatever name it is asked by (``routes`` has what it answers), an HTTPS server has a certificate
for each.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trustme

LOOPBACK = "127.0.0.1"
# No wait of these servers takes longer unless something hangs.
WAIT_SECONDS = 30

Talk = Callable[[socket.socket], None]
"""What a server does with one connection. When it returns, the connection is closed."""


@dataclass(frozen=True)
class Request:
    """What arrived at an HTTP server. Header names are as they were sent, in their order."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass
class Server:
    """One listening socket on loopback, and a thread for each connection."""

    talk: Talk
    scheme: str = "tcp"
    tls: ssl.SSLContext | None = None
    at: tuple[str, int] = (LOOPBACK, 0)
    requests: list[Request] = field(default_factory=list)  # of an HTTP server, in the order of their arrival
    # What else the server has at /files/NAME.
    files: dict[str, bytes] = field(default_factory=dict)
    # What /slow waits for, and the raw server that says nothing until then.
    released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listening = socket.create_server(self.at, backlog=4096)
        self.port: int = self._listening.getsockname()[1]
        self._connections = 0
        self.failures: list[BaseException] = []
        self._stop, self._stopped = socket.socketpair()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name=f"{self.scheme} server")
        self._accepting.start()

    def url(self, path: str = "/", name: str = LOOPBACK) -> str:
        return f"{self.scheme}://{name}:{self.port}{path}"

    def rule(self, name: str = LOOPBACK) -> str:
        return f"{name}:{self.port}"

    def heard(self) -> bytes:
        """All that has arrived, heads and bodies, for a look at what is not in it."""
        lines = [
            f"{one.method} {one.target}\n" + "".join(f"{name}: {value}\n" for name, value in one.headers)
            for one in self.requests
        ]
        return "".join(lines).encode() + b"".join(one.body for one in self.requests)

    @property
    def connections(self) -> int:
        """How many were made so far, those included that wait to be accepted."""
        while self._listening.fileno() >= 0 and select.select([self._listening], [], [], 0)[0]:
            select.select([], [], [], 0.001)
        with self._lock:
            return self._connections

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._listening, self._stopped], [], [])
            if self._stopped in ready:
                return
            with self._lock:
                connection, _ = self._listening.accept()
                self._connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(connection,), name=f"{self.scheme} connection")
            with self._lock:
                self._threads = [known for known in self._threads if known.is_alive()] + [thread]
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        connection = plain
        try:
            connection.settimeout(WAIT_SECONDS)
            if self.tls is not None:
                connection = self.tls.wrap_socket(plain, server_side=True)
            with self._lock:
                self._open.add(connection)
            self.talk(connection)
        except OSError:
            pass  # the other side hung up or did not like the certificate, as it may
        except BaseException as failure:
            self.failures.append(failure)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def close(self) -> None:
        self.released.set()
        self._stop.send(b"x")
        self._accepting.join()
        self._listening.close()
        with self._lock:
            left, threads = list(self._open), list(self._threads)
        for connection in left:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended meanwhile
        for thread in threads:
            thread.join(WAIT_SECONDS)
        self._stop.close()
        self._stopped.close()
        assert not self.failures, self.failures


@contextmanager
def serving(talk: Talk, scheme: str = "tcp", tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server that does ``talk`` with each connection."""
    server = Server(talk, scheme, tls)
    try:
        yield server
    finally:
        server.close()


class _TlsSocket(ssl.SSLSocket):
    """Closes itself: where the client has gone before the handshake, ``wrap_socket`` raises and leaves it to nobody."""

    def __del__(self) -> None:
        self.close()


def certified(authority: trustme.CA) -> ssl.SSLContext:
    """The server's side of TLS, with a certificate for each name that is asked for."""
    made: dict[str | None, ssl.SSLContext] = {}

    def context_for(name: str | None) -> ssl.SSLContext:
        if name not in made:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_alpn_protocols(["http/1.1"])
            identities = [name] if name is not None else ["localhost", LOOPBACK]
            authority.issue_cert(*identities).configure_cert(context)
            made[name] = context
        return made[name]

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name is not None:
            connection.context = context_for(name)

    context = context_for(None)
    context.sni_callback = choose
    context.sslsocket_class = _TlsSocket
    return context


def echo(connection: socket.socket) -> None:
    """Sends back what comes, until the other side has ended its half."""
    while data := connection.recv(65536):
        connection.sendall(data)


BANNER = b"220 mail.example ready\r\n"


def banner_first(connection: socket.socket) -> None:
    """Speaks first, as mail and database servers do; then echoes."""
    connection.sendall(BANNER)
    echo(connection)
