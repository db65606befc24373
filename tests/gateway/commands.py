"""The command `ramet gateway`, started as a person does."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_SECONDS = 90
COMMAND = (sys.executable, "-m", "ramet.cli.main", "gateway")


class Started:
    def __init__(self, process: subprocess.Popen[bytes], said: str) -> None:
        self.process = process
        self.said = said
        found = re.search(r"http://[^\s/\"]+", said)
        assert found is not None, said
        self.url = found[0]


@contextmanager
def started(folder: Path, upstream: str, *options: str, **variables: str) -> Iterator[Started]:
    """Until it says how to reach it; what it logs goes to a file."""
    command = [*COMMAND, "--upstream", upstream, "--port", "0", "--files", str(folder / "files"), *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **variables}
        )
    try:
        yield Started(process, _announcement(process, folder / "log"))
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(WAIT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def _announcement(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    text, until = b"", time.monotonic() + WAIT_SECONDS
    while b"messages=[...]" not in text:
        ready, _, _ = select.select([process.stdout], [], [], max(until - time.monotonic(), 0))
        piece = os.read(process.stdout.fileno(), 65536) if ready else b""
        text += piece
        assert piece, f"the gateway did not start; it said: {text.decode()} {log.read_text()}"
    return text.decode()
