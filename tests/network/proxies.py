"""The proxy's real process, driven over its control socket as the engine does, with listeners on the host's loopback in
the place of a pod's. What a program in a sandbox would do, a test does with plain sockets.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ramet.network
from ramet.protocol.network.specs import NetworkSpec, read_rules

WAIT_SECONDS = 20.0
# What most tests call their server, and where it is.
NAME = "data.example"
PINNED = {NAME: "127.0.0.1"}
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ramet.network.proxy import start; start()"

Message = dict[str, object]


@dataclass
class Place:
    """A sandbox as the proxy sees it: where its programs connect to."""

    id: int
    proxy_port: int
    names_port: int


class ProxyDriver:
    """The engine's side of one proxy process."""

    def __init__(self, descriptors: int | None = None) -> None:
        """``descriptors``: so many it may have at most."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = str(Path(ramet.network.__file__).resolve().parents[2])
        command = [sys.executable, "-I", "-c", _BOOT, package, "--control", str(theirs.fileno())]
        if descriptors is not None:
            command = ["/bin/sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env={}, cwd="/"
        )
        theirs.close()
        self.said: list[Message] = []
        self.errors = b""
        self._changed = threading.Condition()
        self._ids = 0
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()
        try:
            self.wait(lambda: any(message.get("say") == "ready" for message in self.said))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """It ends when nobody speaks to it any more."""
        self._control.shutdown(socket.SHUT_RDWR)
        self.process.wait(WAIT_SECONDS)
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        self._control.close()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def tell(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        if len(data) > 100_000:
            memory = os.memfd_create("message")
            os.write(memory, data)
            socket.send_fds(self._control, [json.dumps({"memfd": len(data)}).encode()], [memory, *descriptors])
            os.close(memory)
        else:
            socket.send_fds(self._control, [data], descriptors)

    def wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_SECONDS
        with self._changed:
            while not condition():
                assert self.process.poll() is None, f"the proxy has ended: {self.errors.decode()}"
                assert self._changed.wait(until - time.monotonic()), f"nothing of the kind was said: {self.said[-5:]}"

    def open(
        self,
        *rules: str,
        open: bool = False,
        deny: Sequence[str] = (),
        secrets: Sequence[Mapping[str, object]] = (),
        listeners: Sequence[str] = ("proxy", "transparent", "names"),
        more: Mapping[str, object] | None = None,
        **network: object,
    ) -> Place:
        """A sandbox with these rules; names of ``addresses`` are pinned."""
        self._ids += 1
        made = {"proxy": _tcp(), "transparent": _tcp(), "names": _udp()}
        spec = spec_of(*rules, open=open, deny=deny, **network)
        message = {"do": "open", "id": self._ids, "network": spec.header(), "secrets": list(secrets), "like": None}
        used = [made[name] for name in listeners]
        self.tell({**message, "listeners": list(listeners), **(more or {})}, [end.fileno() for end in used])
        ports = [end.getsockname()[1] for end in made.values()]
        for end in made.values():
            end.close()
        return Place(self._ids, ports[0], ports[2])

    def change(self, place: Place, spec: NetworkSpec, secrets: Sequence[Mapping[str, object]] = ()) -> None:
        self.tell({"do": "change", "id": place.id, "network": spec.header(), "secrets": list(secrets)})

    def flush(self) -> None:
        """All that happened until now has been said when this returns."""
        ticket = f"{time.monotonic_ns()}"
        self.tell({"do": "flush", "ticket": ticket})
        self.wait(lambda: any(message.get("ticket") == ticket for message in self.said))

    def log(self, place: Place) -> list[Message]:
        """Its entries, each with what was counted for it last."""
        self.flush()
        entries: dict[object, Message] = {}
        with self._changed:
            for message in self.said:
                if message.get("id") == place.id and message["say"] in ("tried", "counted"):
                    entries.setdefault(message["entry"], {}).update(message)
        return list(entries.values())

    def last(self, place: Place) -> Message:
        return self.log(place)[-1]

    def wait_for_entry(self, place: Place, condition: Callable[[Message], bool]) -> Message:
        until = time.monotonic() + WAIT_SECONDS
        while True:
            found = [entry for entry in self.log(place) if condition(entry)]
            if found:
                return found[0]
            assert time.monotonic() < until, self.log(place)

    def _listen(self) -> None:
        while True:
            data = self._control.recv(1 << 20)
            with self._changed:
                if data:
                    found = json.loads(data)
                    self.said += found if isinstance(found, list) else [found]
                self._changed.notify_all()
            if not data:
                return

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line


@contextmanager
def proxy_running(descriptors: int | None = None) -> Iterator[ProxyDriver]:
    """A proxy that must neither have died at the end nor met an error that it did not foresee."""
    driver = ProxyDriver(descriptors)
    try:
        yield driver
        assert driver.process.poll() is None, driver.errors.decode()
    finally:
        driver.close()
    assert driver.errors == b"", driver.errors.decode()


def spec_of(*rules: str, open: bool = False, deny: Sequence[str] = (), **network: object) -> NetworkSpec:
    addresses = network.pop("addresses", {})
    assert isinstance(addresses, dict)
    pairs = tuple(addresses.items())
    return NetworkSpec(open, read_rules(rules), read_rules(deny), pairs, **network)  # type: ignore[arg-type]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)


def receive(end: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        assert more, f"it ended after {data!r}"
        data += more
    return data


def receive_head(end: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = end.recv(1)
        assert more, f"it ended after {data!r}"
        data += more
    return data


def receive_all(end: socket.socket) -> bytes:
    """Until it ends; ConnectionResetError: it was reset."""
    data = b""
    while more := end.recv(65536):
        data += more
    return data


def tunnel(place: Place, host: str, port: int) -> socket.socket:
    """Through CONNECT, which must be granted."""
    end = connect(place.proxy_port)
    end.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    head = receive_head(end)
    assert head.startswith(b"HTTP/1.1 200 "), head
    return end


def refused(place: Place, host: str, port: int) -> str:
    """Through CONNECT, which must not be granted: the whole answer."""
    with connect(place.proxy_port) as end:
        end.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = receive_all(end).decode()
    assert not answer.startswith("HTTP/1.1 200"), answer
    return answer


def _tcp() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=256)


def _udp() -> socket.socket:
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind(("127.0.0.1", 0))
    return end
