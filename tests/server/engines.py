"""Keepers and engines as a test sees them: started, spoken to over their socket, watched from outside."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ramet.doors.http.processes import keeper
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode

WAIT_SECONDS = 60


class KeeperProcess:
    """A keeper, started as the supervisor does, with what it said first."""

    def __init__(self, state: Path, *options: str) -> None:
        state.mkdir(mode=0o700, exist_ok=True)
        self.state = state
        read_end, write_end = os.pipe()
        with (state / keeper.LOG_NAME).open("ab") as log:
            command = [sys.executable, "-m", "ramet.doors.http.processes.keeper", "--state", str(state)]
            self.process = subprocess.Popen(
                [*command, "--ready-fd", str(write_end), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[write_end],
                start_new_session=True,
            )
        os.close(write_end)
        ready, _, _ = select.select([read_end], [], [], WAIT_SECONDS)
        assert ready, "the keeper said nothing"
        self.said = os.read(read_end, 65536).decode()
        os.close(read_end)

    @property
    def log(self) -> str:
        return (self.state / keeper.LOG_NAME).read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(WAIT_SECONDS)


def connect(state: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(WAIT_SECONDS)
        connection.connect(str(state / keeper.SOCKET_NAME))
    except OSError:
        connection.close()
        raise
    return connection


def ask(connection: socket.socket, kind: int, header: Mapping[str, object], blob: bytes = b"") -> Frame:
    """One call with one answer."""
    connection.sendall(encode(kind, header, blob))
    decoder = FrameDecoder(FROM_ENGINE)
    while data := connection.recv(65536):
        for frame in decoder.feed(data):
            if frame.kind == calls.ERROR:
                raise calls.read_error(frame.header)
            return frame
    raise EOFError("the engine hung up")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, f"not in time: {what}"
        time.sleep(0.01)
