"""A server of our own for the bench, and what is measured against it."""

import functools
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Sample, Unavailable, per_cell_in_a_burst
from bench.process import announcing_program
from ramet import Sandbox

_STREAM_BYTES = 100_000_000
_PIECE_BYTES = 65536


@contextmanager
def running() -> Iterator[str]:
    """The URL of a server that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as state:
        with announcing_program("ramet.cli.main", "serve", "--port", "0", "--state", state) as url:
            yield url


@contextmanager
def warm_cell(url: str) -> Iterator[Sample]:
    with Sandbox(url=url) as sandbox:

        def run_one() -> None:
            result = sandbox.run_code("print(6*7)")
            assert result.stdout == "42\n", result

        yield lambda: per_cell_in_a_burst(run_one)


@contextmanager
def fork_five(make: Callable[[], Sandbox]) -> Iterator[Sample]:
    """Until all five can take a cell."""
    with make() as parent:
        parent.run_code("data = list(range(100_000))")

        def sample() -> float:
            started = time.perf_counter()
            children = parent.fork(5)
            taken = time.perf_counter() - started
            children.close()
            return taken

        yield sample


@contextmanager
def published_client(url: str) -> Iterator[Sample]:
    """Create, one bash cell and close with the published client, on a new connection."""
    try:
        import podflare
    except ImportError:
        raise Unavailable("the published client is not installed: pip install podflare") from None

    def sample() -> float:
        # Each client has connections of its own. To make one takes it longer than all the rest, without any server.
        client = podflare.Client(host=url)
        started = time.perf_counter()
        sandbox = podflare.Sandbox(client=client)
        assert sandbox.run_code("echo ready", language="bash").stdout.strip() == "ready"
        sandbox.close()
        taken = time.perf_counter() - started
        client.close()
        return taken

    yield sample


@contextmanager
def empty_requests(url: str) -> Iterator[Sample]:
    """Three requests for nothing, each on a plain socket of its own, and one bash."""
    host, _, port = url.removeprefix("http://").partition(":")
    request = f"GET /v1/healthz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()

    def sample() -> float:
        started = time.perf_counter()
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(request)
                answer = b"".join(iter(functools.partial(connection.recv, 4096), b""))
                assert answer.endswith(b"ok"), answer
        _bash()
        return time.perf_counter() - started

    yield sample


def _bash() -> None:
    assert subprocess.run(["bash", "-c", "echo ready"], stdout=subprocess.PIPE, check=True).stdout == b"ready\n"


@contextmanager
def stream_of_output(make: Callable[[], Sandbox]) -> Iterator[Sample]:
    """100 MB that a bash cell prints, until the last piece is here."""
    with make() as sandbox:
        line = "x" * 99
        sandbox.run_code(
            f"with open('/root/big', 'w') as file:\n    for _ in range(1000): file.write({line + chr(10)!r} * 1000)"
        )

        def sample() -> float:
            got = 0
            started = time.perf_counter()
            for event in sandbox.run_code_stream("cat /root/big", language="bash"):
                if event.type == "stdout":
                    got += len(event.data)
            taken = time.perf_counter() - started
            assert got == _STREAM_BYTES, got
            return taken

        yield sample


@contextmanager
def cat_through_a_socket() -> Iterator[Sample]:
    """The same bytes by `cat` through a pipe, and on through a TCP connection to a reader."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = Path(folder, "big")
        path.write_bytes((b"x" * 99 + b"\n") * (_STREAM_BYTES // 100))
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as cat:
                    assert cat.stdout is not None
                    while piece := os.read(cat.stdout.fileno(), _PIECE_BYTES):
                        connection.sendall(piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()

        def sample() -> float:
            got = 0
            started = time.perf_counter()
            with socket.create_connection(listener.getsockname()) as connection:
                while piece := connection.recv(_PIECE_BYTES):
                    got += len(piece)
            taken = time.perf_counter() - started
            assert got == _STREAM_BYTES, got
            return taken

        try:
            yield sample
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
