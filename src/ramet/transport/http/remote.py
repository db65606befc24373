"""The engine behind a server, as the SDK sees it. The module's state is one engine for each URL and key, and a lock."""

from __future__ import annotations

import atexit
import os
import threading

from ramet.protocol import calls
from ramet.transport.http.address import Address, read_address
from ramet.transport.http.asynchronous import AsyncHttpLink
from ramet.transport.http.blocking import HttpLink
from ramet.transport.http.janitor import janitor
from ramet.transport.http.server import Server


class RemoteEngine:
    """Shared by all sandboxes of this process at one server. A forked child may use it, with connections of its own."""

    remote = True
    running = True

    def __init__(self, address: Address) -> None:
        self._server = Server(address)
        self.saved_templates: set[str] = set()

    def __repr__(self) -> str:
        return f"<RemoteEngine {self._server.url}>"

    @property
    def place(self) -> object:
        return self._server.url

    def check(self) -> None:
        """Do nothing: the call itself reports whether the server is there."""

    def forget(self, some_id: str, kind: int) -> None:
        janitor.close(self._server, some_id, kind, "snapshot" if kind == calls.DROP else "sandbox")

    def link(self) -> HttpLink:
        return HttpLink(self._server)

    def async_link(self) -> AsyncHttpLink:
        return AsyncHttpLink(self._server, janitor)

    def _forked(self) -> None:
        self._server.connections.forked()


_lock = threading.RLock()  # reentrant: a signal handler may make a sandbox while its thread holds it
_engines: dict[Address, RemoteEngine] = {}


def remote_engine(url: object, key: object) -> RemoteEngine:
    """Return the engine at this URL for this key. Sends nothing. Raise InvalidArgument for a bad URL or key."""
    address = read_address(url, key)
    with _lock:
        if address not in _engines:
            _engines[address] = RemoteEngine(address)
        return _engines[address]


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    janitor.forked()
    for engine in _engines.values():
        engine._forked()


def _at_exit() -> None:
    for engine in _engines.values():
        engine._server.connections.close_idle()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
