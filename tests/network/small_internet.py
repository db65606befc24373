"""A program that makes an internet of two machines, and sandboxes on one of them; prints what they could reach as JSON.

``python -m tests.network.small_internet`` must run in a network and mount namespace of its own, with all capabilities
there. The other machine is a network namespace behind a pair of virtual cables:

    this one  93.184.216.33  ───  the other one  93.184.216.34 (public), 10.20.30.40 (private), 169.254.169.254, ...

Its web server listens on every address it has, so that what is not reached was refused on the way.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramet import Sandbox

PUBLIC, PRIVATE, HERE = "93.184.216.34", "10.20.30.40", "93.184.216.33"
METADATA, WIRE = "169.254.169.254", "168.63.129.16"
SHARED = "100.64.0.9"

# Each leads to the web server of the other machine, if nobody is in between.
NAMES = {
    "public.example": (PUBLIC,),
    "private.example": (PRIVATE,),
    "metadata.example": (METADATA,),
    "here.example": (HERE,),
    "loopback.example": ("127.0.0.1",),
    "both.example": (PRIVATE, PUBLIC),
}
HOSTS = [
    *NAMES,
    PUBLIC,
    PRIVATE,
    METADATA,
    WIRE,
    SHARED,
    HERE,
    "127.0.0.1",
    "0.0.0.0",
    "2130706433",
    "0x7f.1",
    "[::1]",
    f"[::ffff:{PRIVATE}]",
    f"[::ffff:{PUBLIC}]",
    f"[64:ff9b::{PRIVATE}]",
    "[2002:a14:1e28::1]",
    "nowhere.example",
]
_WAIT_SECONDS = 30

# On the other machine: one line for each connection, with the address that it came for.
_WEB_SERVER = """
import socketserver, sys
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        print(self.request.getsockname()[0], flush=True)
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\nConnection: close\\r\\n\\r\\nhello\\n")
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
with Server(("0.0.0.0", 80), Answer) as server:
    print("listening", flush=True)
    server.serve_forever()
"""


def main() -> None:
    answers: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, other_machine() as machine:
        know_names(Path(folder))
        with Sandbox(network="open") as sandbox:
            answers["fetched"] = {host: fetch(sandbox, f"http://{host}/") for host in HOSTS}
            answers["raw"] = {
                host: connect(sandbox, host) for host in (PUBLIC, PRIVATE, METADATA, HERE, "public.example")
            }
            answers["log"] = [
                [one.host, one.allowed, one.rule, one.address, one.reason] for one in sandbox.network.log()
            ]
            sandbox.network.deny("public.example")
            answers["denied"] = fetch(sandbox, "http://public.example/")
        with Sandbox(network=[PRIVATE, "private.example", "public.example"]) as sandbox:
            hosts = (PRIVATE, "private.example", "public.example", PUBLIC, "both.example")
            answers["listed"] = {host: fetch(sandbox, f"http://{host}/") for host in hosts}
        machine.terminate()
        assert machine.stdout is not None
        answers["arrived"] = machine.stdout.read().split()
    print(json.dumps(answers))


@contextmanager
def other_machine() -> Iterator[subprocess.Popen[str]]:
    """The process of its web server, which has printed nothing more than that it listens."""
    command = ["unshare", "-n", sys.executable, "-u", "-c", _WEB_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as machine:
        try:
            assert machine.stdout is not None
            assert machine.stdout.readline() == "listening\n"
            there = ["nsenter", "-t", str(machine.pid), "-n"]
            _run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "plug", "netns", str(machine.pid))
            _run("ip", "addr", "add", f"{HERE}/24", "dev", "cable")
            for device, where in (("lo", []), ("cable", []), ("lo", there), ("plug", there)):
                _run(*where, "ip", "link", "set", device, "up")
            _run(*there, "ip", "addr", "add", f"{PUBLIC}/24", "dev", "plug")
            for address in (PRIVATE, METADATA, WIRE, SHARED):
                _run(*there, "ip", "addr", "add", f"{address}/32", "dev", "plug")
            _run("ip", "route", "add", "default", "via", PUBLIC)
            for address in (PRIVATE, METADATA, WIRE, SHARED, PUBLIC):
                _wait_until_reached(address)
                assert machine.stdout.readline() == f"{address}\n"
            yield machine
        finally:
            machine.terminate()


def know_names(folder: Path) -> None:
    """Names lead to addresses for this process and those it starts, without anybody to ask."""
    folder.chmod(0o755)
    known = [f"{address} {name}" for name, some in NAMES.items() for address in some]
    _put("/etc/hosts", folder / "hosts", "127.0.0.1 localhost", *known)
    # Nobody listens there, which is known at once: a server that cannot be reached would be waited for.
    _put("/etc/resolv.conf", folder / "resolv.conf", "nameserver 127.0.0.1")


def _put(path: str, file: Path, *lines: str) -> None:
    """Have a file of these lines at the path."""
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o644)
    if os.path.exists(path):
        _run("mount", "--bind", str(file), os.path.realpath(path))


def fetch(sandbox: Sandbox, url: str) -> list[object]:
    """Status and body through the proxy, which curl would not ask for addresses of its own machine."""
    command = f"curl -gsS -m {_WAIT_SECONDS} --noproxy '' -w '\\n%{{http_code}}' '{url}'"
    result = sandbox.run_code(command, language="bash", timeout=2 * _WAIT_SECONDS)
    body, _, status = result.stdout.rpartition("\n")
    return [int(status or 0), body + result.stderr]


def connect(sandbox: Sandbox, host: str) -> str:
    """What a program that knows no proxy gets."""
    result = sandbox.run_code(
        f"""
        import socket
        try:
            with socket.create_connection(({host!r}, 80), timeout={_WAIT_SECONDS}) as connection:
                connection.sendall(b"GET / HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n")
                print(connection.recv(15).decode())
        except OSError as error:
            print(type(error).__name__)
        """,
        timeout=2 * _WAIT_SECONDS,
    )
    return result.stdout.strip() or result.stderr


def _wait_until_reached(address: str) -> None:
    """The first packets over a new cable may be lost."""
    ends = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            socket.create_connection((address, 80), timeout=_WAIT_SECONDS).close()
            return
        except OSError:
            if time.monotonic() > ends:
                raise


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=_WAIT_SECONDS)


if __name__ == "__main__":
    os.environ.pop("RAMET_URL", None)
    main()
