"""A real server, started as a user does."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.processes import command_line, descendants

_START_SECONDS = 90
_STOP_SECONDS = 60
# SIGINT again, hard interrupt, kill: the ladder that users have, climbed faster.
_SHORT_WAITS = ["--engine-option=--interrupt-seconds=0.3,0.3,0.6"]


class Server:
    """``ramet serve`` with a state folder of its own. What it logs goes to a file in that folder's parent."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.state = folder / "state"
        self.log = folder / "server.log"
        self._options = options
        self.url = ""
        self.banner = ""  # one write, so that it arrives whole
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def start(self, port: int = 0, command: Sequence[str] = (sys.executable, "-m", "ramet.cli.main")) -> None:
        """Until it says where it serves. `command`: what runs as `ramet`."""
        command = [*command, "serve", "--port", str(port), "--state", str(self.state)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *_SHORT_WAITS, *self._options], stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL
            )
        self.url = self._address()

    def _address(self) -> str:
        assert self.process.stdout is not None
        said = b""
        until = time.monotonic() + _START_SECONDS
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], max(until - time.monotonic(), 0))
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            said += piece
            if found := re.search(rb"https?://[^\s/]+", said):
                self.banner = said.decode()
                return found[0].decode()
            assert piece, f"the server did not start; it said: {said.decode()} {self.log.read_text()}"

    def kill(self) -> None:
        """As the kernel or an impatient person would."""
        self.process.kill()
        self._reap()

    def kill_engine(self) -> None:
        for pid in descendants(self.process.pid):
            if b"ramet.engine.__main__" in command_line(pid) and b"ramet-pod" not in command_line(pid):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> int:
        """Graceful; gives the exit code."""
        self.tell_to_stop()
        return self.wait()

    def tell_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Until it has ended; gives the exit code."""
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(_STOP_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._process = None
        return code

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def create_key(self, name: str, *options: str) -> str:
        """With the command that a person uses; the key itself."""
        command = [sys.executable, "-m", "ramet.cli.main", "keys", "create", "--name", name, "--state", str(self.state)]
        said = subprocess.run([*command, *options], check=True, capture_output=True, text=True).stdout
        found = re.search(r"rmt_[\w-]+", said)
        assert found is not None, said
        return found[0]


@contextmanager
def running_server(folder: Path, *options: str) -> Iterator[Server]:
    """A server that ends with the block."""
    server = Server(folder, *options)
    server.start()
    try:
        yield server
    finally:
        if server.running:
            server.stop()


def worker_pid(server: Server) -> int:
    """0: none runs."""
    children = descendants(server.process.pid)
    return next((pid for pid in children if b"ramet.doors.http.processes.confined_worker" in command_line(pid)), 0)
