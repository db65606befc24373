"""A worker of the server alone, with settings that a test chooses: shorter times, smaller bounds, no engine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramet.doors.http.settings import ServerSettings

_STOP_SECONDS = 60


class WorkerProcess:
    """The process that answers HTTP, started as the supervisor starts it."""

    def __init__(self, state: Path, **settings: Any) -> None:
        state.mkdir(mode=0o700, exist_ok=True)
        self.log = state.parent / "worker.log"
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener, self.log.open("ab") as log:
            self.port: int = listener.getsockname()[1]
            chosen = ServerSettings(**{"state": str(state), "port": self.port, "engine_seconds": 0.0, **settings})
            command = [sys.executable, "-m", "ramet.doors.http.processes.confined_worker", "--parent", str(os.getpid())]
            command += ["--socket", str(listener.fileno()), "--settings", json.dumps(asdict(chosen))]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, pass_fds=[listener.fileno()], process_group=0
            )

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(_STOP_SECONDS)


@contextmanager
def running_worker(folder: Path, **settings: Any) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(folder / "state", **settings)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.stop()
